"""No page of another site can press a button here."""

import pytest

from entrostat.dashboard.app import build_app
from entrostat.wire.client import Client

URL = "http://127.0.0.1:9"  # nobody listens: no test here gets that far


def asks(hosts, method="GET", **headers):
    app = build_app(Client(URL), URL, hosts)
    path = "/" if method == "GET" else "/_dash-update-component"
    return app.server.test_client().open(path, method=method, headers=headers, data=b"{}")


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "[::1]:8050"])
def test_this_machines_own_names_are_answered(host):
    assert asks((), Host=host).status_code == 200


def test_a_name_that_was_made_to_point_here_is_not():
    refused = asks((), Host="rebound.example:8050")

    assert refused.status_code == 403
    assert "--allow-host rebound.example" in refused.text


def test_a_name_that_was_allowed_is_and_so_is_any_where_more_than_loopback_listens():
    assert asks(("proxy.example",), Host="proxy.example").status_code == 200
    assert asks(None, Host="anything.example").status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_cannot_act(site):
    refused = asks((), "POST", Host="127.0.0.1:8050", **{"Sec-Fetch-Site": site})

    assert refused.status_code == 403
    assert "another site" in refused.text


def test_a_form_of_another_site_is_no_callback():
    """An old browser tells no site; what a form can send without asking first is not JSON, and does nothing."""
    sent = asks((), "POST", Host="127.0.0.1:8050", **{"Content-Type": "text/plain"})

    assert sent.status_code >= 400


def test_a_callbacks_address_asked_by_get_is_only_the_page():
    app = build_app(Client(URL), URL)

    assert app.server.test_client().get("/_dash-update-component").content_type.startswith("text/html")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8050"])
def test_a_browser_that_tells_only_the_origin_is_heard_too(origin):
    assert asks((), "POST", Host="127.0.0.1:8050", Origin=origin).status_code == 403
    assert asks((), "POST", Host="127.0.0.1:8050", Origin="http://127.0.0.1:8050").status_code != 403


def test_a_proxys_name_may_be_the_origin_where_it_was_allowed():
    headers = {"Host": "127.0.0.1:8050", "Origin": "https://proxy.example"}

    assert asks((), "POST", **headers).status_code == 403
    assert asks(("proxy.example",), "POST", **headers).status_code != 403


def test_a_page_says_what_it_may_load_and_run():
    policy = asks((), Host="localhost").headers["Content-Security-Policy"]
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))

    assert "'unsafe-inline'" not in scripts
    assert "'unsafe-eval'" not in scripts
    assert "'sha256-" in scripts
    assert "frame-ancestors 'none'" in policy
