"""A page is waited for as long as it takes: the machine may have other work."""

from playwright.sync_api import expect
from support.patience import PATIENCE_S

expect.set_options(timeout=PATIENCE_S * 1000)
