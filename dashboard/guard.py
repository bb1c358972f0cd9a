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
        if request.method not in ("GET", "HEAD") and _is_foreign(allowed or frozenset()):
            return _refused(
                "a page of another site may not act here (behind a proxy that changes the Host: --allow-host NAME)"
            )
        return None


def tell(server: Flask, scripts: Iterable[str]) -> None:
    """Tell browsers what a page may load and run: what is served here, and Dash's own lines in the page.

    Args:
        scripts: hashes of those lines, as ``Dash.csp_hashes`` gives them.
    """
    headers = _HEADERS | {"Content-Security-Policy": _POLICY.format(scripts=" ".join(scripts))}

    @server.after_request
    def _tell(response: Response) -> Response:
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response


def _is_foreign(allowed: frozenset[str]) -> bool:
    """Whether a browser says that another site's page sends this; what is no browser says neither."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    said = urlsplit(origin)
    return said.netloc != request.host and said.hostname not in allowed


# Plotly and Dash write styles into the page, and a chart's PNG goes through data: and blob:.
_POLICY = (
    "default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine that no other reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(message: str) -> Response:
    return Response(message, 403, mimetype="text/plain")
