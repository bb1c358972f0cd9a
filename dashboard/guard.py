"""Pages of other sites: refused before any callback runs, because a click here can stop a training run.

A page on another site may send requests to this machine from the visitor's browser, and a name that resolves to
127.0.0.1 makes that page the same origin. Browsers tell of the first (``Sec-Fetch-Site``), ``Host`` of the second.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from flask import Flask, Response, request


def install(server: Flask, hosts: Iterable[str] | None) -> None:
    """Refuse what another site sends.

    Args:
        hosts: names beside this machine's own that the dashboard may be asked by; None: any name, for a dashboard that
            listens on more than loopback.
    """
    allowed = None if hosts is None else frozenset(hosts)

    @server.before_request
    def _check() -> Response | None:
        name = urlsplit(f"//{request.host}").hostname or ""
        if allowed is not None and not is_loopback(name) and name not in allowed:
            return _refused(f"this dashboard answers to this machine's own names, not to {name!r}: --allow-host {name}")
        if request.method not in ("GET", "HEAD") and request.headers.get("Sec-Fetch-Site") in (
            "cross-site",
            "same-site",
        ):
            return _refused("a page of another site may not act here")
        return None


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine that no other reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(message: str) -> Response:
    return Response(message, 403, mimetype="text/plain")
