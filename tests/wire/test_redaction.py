"""What looks like a password or a token stays where it is; what only looks a little like one is kept."""

import json

import httpx
import pytest

from entrostat.wire.client import Client, without_credentials
from entrostat.wire.errors import ServerDown
from entrostat.wire.notices import event
from entrostat.wire.redaction import REDACTED, is_secret, redacted, redacted_tags

SECRETS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "es_Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA", "sk-proj-Abc123Def456Ghi789Jkl",
    "ghp_1234567890abcdefABCDEF1234567890abcd", "AKIAIOSFODNN7EXAMPLE", "xoxb-1234567890-ABCDEFabcdef1234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_tokens_that_say_whose_they_are_are_seen_anywhere(secret):
    assert secret not in redacted(f"401 for token={secret}, try again")
    assert secret not in redacted(secret)


def test_passwords_in_addresses_are_seen_and_the_addresses_stay():
    assert redacted("postgres://bob:s3cr3t@db:5432/x failed") == f"postgres://{REDACTED}@db:5432/x failed"
    assert redacted("Authorization: Bearer abcdefghijklmnopqrstuvwxyz") == f"Authorization: Bearer {REDACTED}"


@pytest.mark.parametrize(
    "text",
    [
        "es_alpaca_translated_clean_dataset", "http://host:8321/v1/runs", "sk_learn-like_splits_of_the_data", "a@b.c",
        "hf_hub", "entropy 0.35 at step 12: 3 @ 4", "/data/models/Qwen2.5-7B-Instruct-2026", "user@host:/path",
    ],
)  # fmt: skip
def test_ordinary_text_is_kept(text):
    assert redacted(text) == text


@pytest.mark.parametrize(
    "name",
    ["hub_token", "WANDB_API_KEY", "aws_secret_access_key", "db_password", "HF_TOKEN", "dsn", "token", "apikey", "key"],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["tokens", "num_input_tokens_seen", "eos_token_id", "tokenizer", "max_keys", "author",
                                  "eos_token", "pad_token", "image_token", "prompt_key", "reward_fn_key"])  # fmt: skip
def test_names_of_settings(name):
    assert not is_secret(name)


def test_tags_and_events_carry_no_secret():
    assert redacted_tags({"api_key": "x", "note": SECRETS[0]}) == {"api_key": REDACTED, "note": REDACTED}
    row = event("warning", f"push failed: {SECRETS[0]}", {"why": [SECRETS[1]], "eos_token": "</s>"}).to_pylist()[0]

    assert SECRETS[0] not in row["message"]
    assert json.loads(row["detail"]) == {"why": [REDACTED], "eos_token": "</s>"}


def test_an_events_values_are_json_whatever_they_are():
    loop = []
    loop.append(loop)
    assert json.loads(event("k", "m", {"a": float("nan"), "b": object}).to_pylist()[0]["detail"])["a"] is None
    for odd in ({"a": loop}, {"a": "\ud800"}, {"a": "x" * 2**21}, {("a", 1): 2}):
        row = event("k", "\ud800", odd).to_pylist()[0]
        assert isinstance(json.loads(row["detail"]), dict)
        assert len(row["detail"]) <= 2**20


def test_an_address_with_a_password_is_used_and_never_shown(caplog):
    caplog.set_level("DEBUG")
    url = "http://bob:s3cr3t@127.0.0.1:9"
    with Client(url) as client, pytest.raises(ServerDown) as raised:
        client.health()

    assert client.url == without_credentials(url) == "http://127.0.0.1:9"
    assert "s3cr3t" not in str(raised.value) + caplog.text
    asked = httpx.Request("GET", client.url)
    sent = next(client._http._build_request_auth(asked).auth_flow(asked))
    assert sent.headers["Authorization"].startswith("Basic ")
    with pytest.raises(ValueError, match="only one") as refused:
        Client(url, "es_token")
    assert "s3cr3t" not in str(refused.value)
