"""Who asks: the name of the token that was sent, or the name that the request gives."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials

from entrostat.server.auth import BEARER, Tokens
from entrostat.server.http_errors import HttpError
from entrostat.storage.audit import By

MAX_CHARS = 120


def token_name(request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> str | None:
    """The name of the request's token in the tokens' file; None where the server runs without tokens."""
    tokens: Tokens = request.app.state.tokens
    return tokens.name(bearer.credentials) if tokens.are_needed and bearer is not None else None


def asker(request: Request, name: Annotated[str | None, Depends(token_name)]) -> By:
    """Who asks, for the audit."""
    return By(name, None, request.client.host if request.client else None)


Asker = Annotated[By, Depends(asker)]
TokenName = Annotated[str | None, Depends(token_name)]


def person_of(token: str | None, said: str | None) -> str:
    """The person who is answerable: the token's name goes before what the request says, which anyone could.

    Raises:
        HttpError: 422, nobody is named.
    """
    name = " ".join((token or said or "").split())[:MAX_CHARS]
    if not name:
        raise HttpError(422, "invalid_request", 'person: say who wants it, for example "person": "anna"')
    return name
