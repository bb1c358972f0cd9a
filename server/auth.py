"""Who may do what: tokens with scopes, kept as hashes in a file of their own, never in the telemetry database."""

import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from entrostat.server.http_errors import HttpError
from entrostat.wire.errors import EntrostatError

Scope = Literal["ingest", "read", "control", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""ingest sends batches; read asks; control changes runs, rules and interventions; admin deletes, and may all else."""


class AuthError(EntrostatError):
    """The tokens' file cannot be used, or an address must not be opened without one."""


class Tokens:
    """The tokens of a file, read again when it changes, so that revoking needs no restart.

    Args:
        path: the file; None: no tokens, everyone may do everything (``check_bind`` allows that on loopback only).

    Raises:
        AuthError: the file is missing or is not one of ours.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._changed_ns = -1
        self._held: dict[str, tuple[str, frozenset[str]]] = {}
        self._used: set[str] = set()
        if path is not None:
            self._read(path)

    @property
    def are_needed(self) -> bool:
        """Whether requests need a token."""
        return self._path is not None

    def scopes(self, token: str) -> frozenset[str] | None:
        """What a token may do; None for an unknown one."""
        found = self._found(token)
        return found[1] if found else None

    def name(self, token: str) -> str | None:
        """The name under which a token was made; None for an unknown one."""
        found = self._found(token)
        return found[0] if found else None

    def is_first_use(self, token: str) -> str | None:
        """The name of a known token that has not been asked about so before; else None."""
        name = self.name(token)
        if name is None or name in self._used:
            return None
        self._used.add(name)
        return name

    def _found(self, token: str) -> tuple[str, frozenset[str]] | None:
        if self._path is not None and self._path.stat().st_mtime_ns != self._changed_ns:
            self._read(self._path)
        given = _hashed(token)
        found = None
        for hashed, named in self._held.items():
            if hmac.compare_digest(hashed, given):
                found = named
        return found

    def _read(self, path: Path) -> None:
        try:
            self._changed_ns = path.stat().st_mtime_ns
            entries = json.loads(path.read_text())["tokens"]
            self._held = {entry["sha256"]: (entry.get("name", ""), frozenset(entry["scopes"])) for entry in entries}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AuthError(f"the tokens in {path} cannot be read ({error}): make them with add_token") from error


def add_token(path: Path, name: str, scopes: Iterable[str]) -> str:
    """Make a token and keep its hash in ``path`` (made if it is not there, readable by its owner only).

    Returns:
        The token itself: shown once, kept nowhere.

    Raises:
        AuthError: a scope is unknown, the name is taken, or the file is not one of ours.
    """
    wanted = sorted(set(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise AuthError(f"scopes {wanted}: give some of {list(SCOPES)}")
    document = _document(path)
    if any(entry["name"] == name for entry in document["tokens"]):
        raise AuthError(f"there is a token named {name!r} already: remove it first, or take another name")
    token = "es_" + secrets.token_urlsafe(32)
    document["tokens"].append(
        {"name": name, "sha256": _hashed(token), "scopes": wanted, "created": datetime.now(UTC).isoformat()}
    )
    _write(path, document)
    return token


def remove_token(path: Path, name: str) -> bool:
    """Revoke the token named ``name``; False where there is none."""
    document = _document(path)
    kept = [entry for entry in document["tokens"] if entry["name"] != name]
    if len(kept) == len(document["tokens"]):
        return False
    _write(path, {"tokens": kept})
    return True


def list_tokens(path: Path) -> list[dict[str, Any]]:
    """Name, scopes and date of each token, without its hash."""
    return [{key: entry[key] for key in ("name", "scopes", "created")} for entry in _document(path)["tokens"]]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine that no other reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, tokens: Tokens) -> None:
    """Refuse to open an address to others without tokens.

    Raises:
        AuthError: with what to do.
    """
    if not tokens.are_needed and not is_loopback(host):
        raise AuthError(
            f"listening on {host} would let everyone on the network read and change the runs. Make a token first "
            "(entrostat token add NAME --scope admin --tokens FILE, then --tokens FILE), or listen on 127.0.0.1"
        )


BEARER = HTTPBearer(auto_error=False, description="A token of the server; not needed where it runs without tokens.")


def scopes_of(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
) -> frozenset[str]:
    """What the request's token may do; everything where the server runs without tokens. Raises HttpError 401."""
    tokens: Tokens = request.app.state.tokens
    if not tokens.are_needed:
        return frozenset(SCOPES)
    request.scope["entrostat_who"] = tokens.name(bearer.credentials) if bearer else None
    scopes = check_known(tokens, bearer.credentials if bearer else None)
    if bearer is not None and (name := tokens.is_first_use(bearer.credentials)) is not None:
        address = request.client.host if request.client else None
        request.app.state.token_used(name, scopes, address)
    return scopes


def require(scope: Scope) -> Callable[..., None]:
    """A dependency that lets a request pass only with a token of ``scope`` (or admin)."""

    def check(scopes: Annotated[frozenset[str], Depends(scopes_of)]) -> None:
        if scope not in scopes and "admin" not in scopes:
            raise HttpError(403, "missing_scope", f"the token may {sorted(scopes)}, this needs {scope!r}")

    return check


def check_known(tokens: Tokens, token: str | None) -> frozenset[str]:
    """What a token may do. Raises HttpError 401 where there is none, or nobody knows it."""
    if not token:
        raise HttpError(401, "no_token", "send a token: Authorization: Bearer ... (ENTROSTAT_TOKEN)", _CHALLENGE)
    scopes = tokens.scopes(token)
    if scopes is None:
        raise HttpError(401, "unknown_token", "the token is not known here: check ENTROSTAT_TOKEN", _CHALLENGE)
    return scopes


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def _hashed(token: str) -> str:
    # A plain hash is enough: tokens are 256 random bits, there is nothing to guess from.
    return hashlib.sha256(token.encode()).hexdigest()


def _document(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"tokens": []}
    Tokens(path)  # raises where the file is not one of ours
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    """Replace the file at once, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mkstemp gives mode 0600
    with os.fdopen(descriptor, "w") as file:
        json.dump(document, file, indent=2)
    os.replace(name, path)
