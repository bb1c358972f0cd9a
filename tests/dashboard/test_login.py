"""Signing in, over real processes and in a real Chromium: a person may here what their own token may."""

import subprocess

import httpx
import pytest
from playwright.sync_api import expect
from support.patience import PATIENCE_S, until
from support.service import FakeRun, Process

from entrostat.dashboard.login import COOKIE, local
from entrostat.dashboard.sessions import MAX_WRONG
from entrostat.server.auth import add_token, remove_token
from entrostat.wire.client import Client
from entrostat.wire.messages import Permissions

pytestmark = pytest.mark.browser
MAY = Permissions(mode="advise", allow=["kl_cov", "scope"])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """File of the tokens; the tokens by name."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    scopes = {"reader": ["read"], "anna": ["read", "control"], "trainer": ["ingest"], "gone": ["read"]}
    return path, {name: add_token(path, name, wanted) for name, wanted in scopes.items()}


@pytest.fixture(scope="module")
def server(tokens, tmp_path_factory):
    path, by_name = tokens
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data"), "--tokens", path).start("/healthz")
    FakeRun(made.url, "first", permissions=MAY, token=by_name["trainer"]).report(range(1, 6))
    yield made
    made.stop()


@pytest.fixture
def http(dashboard):
    with httpx.Client(base_url=dashboard.url, trust_env=False, timeout=PATIENCE_S) as made:
        yield made


def sign_in(page, token):
    page.fill("input[name=token]", token)
    page.click("button.primary")


def test_nothing_is_shown_before_signing_in(http):
    opened = http.get("/run/first?x=time")
    assert (opened.status_code, opened.headers["location"]) == (303, "/login?next=%2Frun%2Ffirst%3Fx%3Dtime")
    for method, path in (("GET", "/_dash-layout"), ("GET", "/_dash-dependencies"), ("POST", "/_dash-update-component")):
        answer = http.request(method, path, headers={"Accept": "application/json"}, json={})
        assert (answer.status_code, answer.text) == (401, "sign in first: /login")
    assert http.get("/login").status_code == 200


def test_the_cookie_is_for_this_place_and_its_requests_only(http, tokens):
    answer = http.post("/login", data={"token": tokens[1]["reader"], "next": "/compare"})
    said = answer.headers["set-cookie"]

    assert (answer.status_code, answer.headers["location"]) == (303, "/compare")
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= {part.strip() for part in said.split(";")}
    assert tokens[1]["reader"] not in said
    assert http.get("/").status_code == 200
    http.post("/logout")
    assert http.get("/").status_code == 303
    http.cookies.set(COOKIE, said.split(";")[0].partition("=")[2])  # kept by someone
    assert http.get("/").status_code == 303


def test_what_is_no_token_is_refused_and_not_repeated_and_soon_has_to_wait(server, tokens):
    wrong = ["es_wrong", "", "é", "a\nb", "<script>alert(1)</script>"]
    assert len(wrong) == MAX_WRONG
    own = Process("entrostat.dashboard", "--server-url", server.url).start()
    try:
        with httpx.Client(base_url=own.url, trust_env=False, timeout=PATIENCE_S) as http:
            for token in wrong:
                answer = http.post("/login", data={"token": token})
                assert answer.status_code == 403
                assert "no token of the server" in answer.text
                assert "<script" not in answer.text
            right = http.post("/login", data={"token": tokens[1]["reader"]})
        assert right.status_code == 429
        assert int(right.headers["retry-after"]) > 0
    finally:
        own.stop()


def test_a_token_that_may_not_read_is_told_so(http, tokens):
    answer = http.post("/login", data={"token": tokens[1]["trainer"]})

    assert answer.status_code == 403
    assert "scope read" in answer.text


@pytest.mark.parametrize(
    "goal", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", None, "/a\r\nX: y"]
)
def test_signing_in_leads_nowhere_else(goal):
    assert local(goal) == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
    ],
)
def test_another_sites_page_can_neither_sign_in_nor_act(http, tokens, headers):
    assert http.post("/login", data={"token": tokens[1]["anna"]}, headers=headers).status_code == 403
    http.post("/login", data={"token": tokens[1]["anna"]})
    assert http.post("/_dash-update-component", json={}, headers=headers).status_code == 403
    assert http.post("/logout", headers=headers).status_code == 403
    assert http.get("/").status_code == 200


def test_a_reader_looks_and_cannot_act_and_a_controller_acts_in_their_own_name(page, server, tokens):
    page.goto("/run/first/control")
    sign_in(page, tokens[1]["reader"])
    expect(page.locator("h1")).to_have_text("first")
    expect(page.locator("main .banner").first).to_contain_text("reader may look")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#control-stop")
    expect(page.locator("#control-answer .banner")).to_contain_text("reader may not do this")
    reading = Client(server.url, tokens[1]["reader"])
    assert reading.desired("first").is_armed

    page.click("#logout button")
    expect(page.locator("input[name=token]")).to_be_visible()
    page.goto("/run/first/control")
    sign_in(page, tokens[1]["anna"])
    expect(page.locator("#control-person")).to_have_value("anna")
    page.click("#control-stop")
    # Looked for on the page first: Playwright answers the dialog only while something is asked of the page.
    expect(page.locator("#control-answer")).to_contain_text("asked to be off")
    assert not reading.desired("first").is_armed

    (asked,) = [e for e in reading.get("/v1/runs/first/events")["events"] if e["kind"] == "asked"]
    assert asked["detail"]["by"] == "person:anna"
    for secret in (tokens[1]["anna"], tokens[1]["reader"]):
        assert not any(secret in url for url in page.asked)
        assert secret not in page.content()
        assert secret not in page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert page.evaluate("() => document.cookie") == ""


def test_a_link_from_elsewhere_finds_who_is_signed_in(page, dashboard, tokens):
    page.goto("/")
    sign_in(page, tokens[1]["reader"])
    expect(page.locator("table.runs")).to_be_visible()
    page.goto("about:blank")
    page.set_content(f'<a href="{dashboard.url}/run/first?x=time">look</a>')  # another site: the cookie is not sent
    page.click("a")

    expect(page.locator("h1")).to_have_text("first")
    assert page.url.startswith(f"{dashboard.url}/run/first?x=time")


def test_a_token_that_was_revoked_is_told_so_and_a_session_that_ended_asks_again(page, tokens):
    page.goto("/")
    sign_in(page, tokens[1]["gone"])
    expect(page.locator("table.runs tbody tr")).to_have_count(1)

    remove_token(tokens[0], "gone")
    expect(page.locator("#runs-trouble .banner")).to_contain_text("Your token may not do this, or not any more")
    page.context.clear_cookies()
    expect(page.locator("input[name=token]")).to_be_visible()


def test_other_machines_get_in_nowhere_without_tokens(tmp_path):
    server = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    opened = Process("entrostat.dashboard", "--server-url", server.url, "--host", "0.0.0.0").start("/login")
    try:
        assert httpx.get(opened.url, trust_env=False, timeout=PATIENCE_S).status_code == 303
        answer = httpx.post(f"{opened.url}/login", data={"token": "anything"}, trust_env=False, timeout=PATIENCE_S)
        assert answer.status_code == 403
        assert "runs without tokens" in answer.text
    finally:
        opened.stop()
        server.stop()


def test_the_dashboards_own_token_is_not_for_visitors_from_elsewhere(server, tokens, tmp_path):
    (tmp_path / "token").write_text(tokens[1]["anna"])
    arguments = ("--server-url", server.url, "--token-file", tmp_path / "token")
    opened = Process("entrostat.dashboard", *arguments, "--host", "0.0.0.0").start("/login")
    own = Process("entrostat.dashboard", *arguments).start()
    try:
        assert httpx.get(opened.url, trust_env=False, timeout=PATIENCE_S).status_code == 303
        assert httpx.get(own.url, trust_env=False, timeout=PATIENCE_S).status_code == 200
    finally:
        opened.stop()
        own.stop()


def test_no_token_is_ever_written_to_a_log(server, tokens):
    process = Process("entrostat.dashboard", "--server-url", server.url)
    process.process = subprocess.Popen(process.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: process.answers("/"))
    with httpx.Client(base_url=process.url, trust_env=False, timeout=PATIENCE_S) as http:
        http.post("/login", data={"token": tokens[1]["reader"]})
        http.post("/_dash-update-component", json={"output": "x", "inputs": tokens[1]["reader"]})  # fails
        http.post("/login", data={"token": "es_a-wrong-one"})
    process.process.terminate()
    written, _ = process.process.communicate(timeout=PATIENCE_S)

    assert "entrostat dashboard on" in written
    assert tokens[1]["reader"] not in written
    assert "es_a-wrong-one" not in written
