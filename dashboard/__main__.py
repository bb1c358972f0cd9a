"""``python -m entrostat.dashboard``: the dashboard alone."""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

import waitress
from dash import Dash

from entrostat.dashboard.app import build_app
from entrostat.dashboard.guard import is_loopback
from entrostat.dashboard.login import Login, visitors_token
from entrostat.dashboard.sessions import Sessions
from entrostat.wire import logs
from entrostat.wire.client import Client

_log = logging.getLogger("entrostat.dashboard")


def main() -> int:
    """Serve until asked to stop; 2 where it cannot start."""
    parser = argparse.ArgumentParser("entrostat.dashboard", description="The dashboard of an entrostat server.")
    parser.add_argument("--server-url", default=os.environ.get("ENTROSTAT_URL", "http://127.0.0.1:8321"))
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8050)
    parser.add_argument("--token-file", help="file with the server's token; else ENTROSTAT_TOKEN")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name to answer to beside this machine's own, for example that of a proxy in front of it",
    )  # fmt: skip
    parser.add_argument("--session-hours", type=float, default=12.0, help="so long after signing in, sign in again")
    parser.add_argument("--https", action="store_true", help="visitors come over https (a proxy in front of it)")
    environment = os.environ.get
    parser.add_argument(
        "--log-format", default=environment("ENTROSTAT_DASHBOARD_LOG_FORMAT", "text"), help="text, json"
    )
    parser.add_argument("--log-level", default=environment("ENTROSTAT_DASHBOARD_LOG_LEVEL", "info"))
    given = parser.parse_args()
    try:
        logs.configure(given.log_format, given.log_level)
        app, client = _app(given)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"entrostat dashboard: {error}\n")
        return 2
    sys.stdout.write(f"entrostat dashboard on http://{given.host}:{given.port} (server {client.url})\n")
    sys.stdout.flush()
    address = f"http://{given.host}:{given.port}"
    logs.event(_log, logging.INFO, "started", url=address, server=client.url)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # waitress ends in order on what this raises
    try:
        waitress.serve(app.server, host=given.host, port=given.port, threads=8, ident=None)
    except OSError as error:
        sys.stderr.write(f"entrostat dashboard: cannot listen on {given.host}:{given.port} ({error})\n")
        return 2
    logs.event(_log, logging.INFO, "stopped", url=address)
    return 0


def _app(given: argparse.Namespace) -> tuple[Dash, Client]:
    token = os.environ.get("ENTROSTAT_TOKEN")
    if given.token_file:
        token = Path(given.token_file).read_text().strip()
    hosts = given.allow_host if is_loopback(given.host) else None
    if token and hosts is not None:  # this machine's own people share its token
        client = Client(given.server_url, token, timeout_s=10.0)
        return build_app(client, client.url, hosts), client
    if token:
        sys.stderr.write("entrostat dashboard: its own token is for this machine only; visitors sign in with theirs\n")
    client = Client(given.server_url, visitors_token, timeout_s=10.0)
    nobodys = Client(given.server_url, timeout_s=10.0)
    login = Login(nobodys, Sessions(given.session_hours * 3600), is_needed=hosts is None, is_https=given.https)
    return build_app(client, client.url, given.allow_host if hosts is not None else None, login), client


if __name__ == "__main__":
    sys.exit(main())
