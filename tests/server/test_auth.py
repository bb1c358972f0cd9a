"""Who may do what: scopes, revoking, addresses, pages of other sites."""

import json
import stat

import pytest

from entrostat.server.auth import AuthError, Tokens, add_token, check_bind, list_tokens, remove_token

REQUESTS = {
    "ingest": ("PUT", f"/v1/streams/{1:032x}"),
    "read": ("GET", "/v1/runs"),
    "control": ("PATCH", "/v1/runs/r"),
    "admin": ("DELETE", "/v1/runs/r"),
}


@pytest.fixture
def guarded(own_server, tmp_path):
    path = tmp_path / "data" / "tokens.json"
    tokens = {scope: add_token(path, scope, [scope]) for scope in REQUESTS}
    return own_server().start(), tokens, path


def status(server, token, method, path):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"run_id": "r", "session_id": "0" * 32, "started": "2026-01-01T00:00:00Z"} if method == "PUT" else {}
    answer = server.http.request(method, path, headers=headers, json=body if method in ("PUT", "PATCH") else None)
    return answer.status_code, answer.json()["error"] if answer.status_code >= 400 else None


def test_each_scope_opens_its_own_doors_and_admin_all(guarded):
    server, tokens, _ = guarded
    for scope, token in tokens.items():
        for needed, (method, path) in REQUESTS.items():
            code, error = status(server, token, method, path)
            if scope in (needed, "admin"):
                assert code not in (401, 403), (scope, needed)
            else:
                assert (code, error) == (403, "missing_scope"), (scope, needed)


def test_without_a_token_only_health_answers(guarded):
    server, tokens, path = guarded

    assert {status(server, None, *request) for request in REQUESTS.values()} == {(401, "no_token")}
    assert status(server, None, "GET", "/metrics") == (401, "no_token")
    assert status(server, "es_wrong", "GET", "/v1/runs") == (401, "unknown_token")
    assert server.http.get("/healthz").json()["tokens_needed"] is True
    assert status(server, tokens["read"], "GET", "/v1/runs") == (200, None)
    remove_token(path, "read")
    assert status(server, tokens["read"], "GET", "/v1/runs") == (401, "unknown_token")


def test_the_file_holds_hashes_and_is_its_owners(tmp_path):
    path = tmp_path / "tokens.json"
    token = add_token(path, "me", ["read", "ingest"])

    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list_tokens(path)[0]["scopes"] == ["ingest", "read"]
    with pytest.raises(AuthError, match="already"):
        add_token(path, "me", ["read"])
    with pytest.raises(AuthError, match="ingest"):
        add_token(path, "you", ["root"])
    assert remove_token(path, "nobody") is False


def test_other_addresses_need_tokens(own_server, tmp_path):
    check_bind("127.0.0.1", Tokens(None))
    check_bind("::1", Tokens(None))
    with pytest.raises(AuthError, match="token add"):
        check_bind("0.0.0.0", Tokens(None))
    add_token(tmp_path / "t.json", "a", ["admin"])
    check_bind("0.0.0.0", Tokens(tmp_path / "t.json"))


def test_a_server_that_may_not_start_says_why_in_a_line(own_server, tmp_path):
    for arguments, words in (
        (("--host", "0.0.0.0"), "token add"),
        (("--tokens", str(tmp_path / "missing.json")), "missing.json"),
    ):
        server = own_server(*arguments)
        with pytest.raises(AssertionError, match=words):
            server.start()
        assert server.process.returncode == 2


def test_a_broken_file_of_tokens_is_refused(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": [{"name": "x"}]}))
    with pytest.raises(AuthError, match="cannot be read"):
        Tokens(path)


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}])
def test_pages_of_other_sites_cannot_reach_an_open_server(server, headers):
    answer = server.http.get("/v1/runs", headers=headers)

    assert (answer.status_code, answer.json()["error"]) == (403, "foreign_host")


def test_this_machines_own_names_can(server):
    for headers in ({"Host": "localhost:1"}, {"Host": "[::1]:8321"}, {"Origin": "http://localhost:8050"}):
        assert server.http.get("/v1/runs", headers=headers).status_code == 200
