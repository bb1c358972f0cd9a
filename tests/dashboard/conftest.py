"""A real Chromium over a real dashboard: a module that has a ``server`` of its own asks for ``page``.

A page is waited for as long as it takes: the machine may have other work.
"""

import pytest
from playwright.sync_api import expect, sync_playwright
from support.patience import PATIENCE_S
from support.service import CHROMIUM_FLAGS, Process, chromium

expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def dashboard(server):
    made = Process("entrostat.dashboard", "--server-url", server.url).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def new_page(browser, dashboard):
    """Makes a page of a person of its own. ``asked``: the addresses it asked for; ``errors``: its console's."""

    def make():
        made = browser.new_context(base_url=dashboard.url, viewport={"width": 1400, "height": 900}).new_page()
        made.set_default_timeout(PATIENCE_S * 1000)
        made.asked, made.errors = [], []
        made.on("request", lambda request: made.asked.append(request.url))
        made.on("console", lambda said: made.errors.append(said.text) if said.type == "error" else None)
        return made

    return make


@pytest.fixture
def page(new_page):
    """After each test: nothing that a name or a message says ran, and the page broke no policy of its own."""
    made = new_page()
    yield made
    assert made.title() in ("entrostat", "")  # "": of another site
    assert [error for error in made.errors if "Content Security Policy" in error] == []
    made.context.close()
