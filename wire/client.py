"""Questions and batches to the server over HTTP, and ``push``, which sends what earlier processes left on disk."""

import ipaddress
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import pyarrow as pa
from pydantic import BaseModel, ValidationError

from entrostat.wire.codec import CONTENT_TYPE
from entrostat.wire.errors import Refused, ServerDown, SpoolBusy, SpoolError
from entrostat.wire.messages import Ack, DesiredState, StreamOpen, StreamOpened
from entrostat.wire.recovery import Restore
from entrostat.wire.retry import Backoff, Verdict, retry_after_s, verdict_on
from entrostat.wire.spool import PendingStream, SpoolStream, pending_streams, sweep

_Answer = TypeVar("_Answer", bound=BaseModel)


class _Bearer(httpx.Auth):
    """The token with each request; asked for each time where it is a function."""

    def __init__(self, token: str | Callable[[], str | None]) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """httpx asks."""
        token = self._token() if callable(self._token) else self._token
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


class Client:
    """A thin client of one server. Every method raises ``Refused`` (the server said no) or ``ServerDown`` (no answer).

    Args:
        url: for example ``http://127.0.0.1:8321``.
        token: sent as a bearer token, where the server asks for one; or a function that gives it, asked each time.
        timeout_s: longest wait for an answer; connecting gets 5 s of it at most.

    Raises:
        ValueError: the address or the token cannot be one.
    """

    def __init__(self, url: str, token: str | Callable[[], str | None] | None = None, timeout_s: float = 30.0) -> None:
        self.address = url.rstrip("/")
        """Where it asks, with the name and password for a proxy where there are any: not for people's eyes."""
        parts = _url_parts(self.address)
        self.url = without_credentials(self.address)
        """The same without them, for messages."""
        given = token if callable(token) else _checked_token(token)
        if parts.userinfo and given:
            raise ValueError(f"{self.url}: give a token, or a name and password in the address; only one can be sent")
        self._http = httpx.Client(
            base_url=self.url,  # httpx writes addresses into its log
            auth=_Bearer(given) if given else (parts.username, parts.password) if parts.userinfo else None,
            timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s)),
            trust_env=not _is_loopback(parts.host),  # a cluster's proxy cannot reach this machine's own address
        )

    def open_stream(self, stream_id: str, opening: StreamOpen) -> StreamOpened:
        """Say who sends; repeating it is harmless."""
        response = self._request(
            "PUT", f"/v1/streams/{stream_id}", content=opening.json_bytes(), content_type="application/json"
        )
        return self._parsed(StreamOpened, response)

    def post_batch(self, stream_id: str, seq: int, body: bytes) -> Ack:
        """Send a batch. When this returns the server holds it, once."""
        path = f"/v1/streams/{stream_id}/batches/{seq}"
        ack = self._parsed(Ack, self._request("POST", path, content=body, content_type=CONTENT_TYPE))
        if ack.acked != seq:  # never delete a batch on the word of something that did not read it
            raise ServerDown(self.url, f"batch {seq} was answered with an acknowledgement of batch {ack.acked}")
        return ack

    def get(self, path: str, **params: Any) -> Any:
        """The JSON document at ``path``; a parameter that is None is left out, a list is repeated."""
        return self._document(self._request("GET", path, params=params))

    def pieces(self, path: str) -> Iterator[bytes]:
        """The bytes at ``path``, piece by piece."""
        try:
            with self._http.stream("GET", path) as response:
                if not response.is_success:
                    response.read()
                    raise refusal(response)
                yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise ServerDown(self.url, str(error) or type(error).__name__) from error

    def send(self, method: str, path: str, document: Any = None) -> Any:
        """PATCH, POST, PUT or DELETE with a JSON document; the answer's document, None where it has none."""
        content = None if document is None else json.dumps(document).encode()
        response = self._request(method, path, content=content, content_type="application/json")
        return self._document(response) if response.content else None

    def sql(self, sql: str, max_rows: int = 10_000) -> tuple[pa.Table, bool]:
        """The rows of a SELECT, and whether they were cut at ``max_rows``."""
        question = {"sql": sql, "format": "arrow", "max_rows": max_rows}
        response = self._request(
            "POST", "/v1/sql", content=json.dumps(question).encode(), content_type="application/json"
        )
        try:
            table = pa.ipc.open_stream(response.content).read_all()
        except (pa.ArrowException, OSError) as error:
            raise ServerDown(self.url, f"the rows cannot be read: {error}") from error
        return table, response.headers.get("X-Truncated", "").lower() in ("1", "true")

    def runs(self, search: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Summaries of the runs, newest first."""
        return list(self.get("/v1/runs", search=search, limit=limit)["runs"])

    def run(self, run_id: str) -> dict[str, Any]:
        """Everything the server knows of one run."""
        return dict(self.get(f"/v1/runs/{quote(run_id, safe='')}"))

    def analysis(self, run_id: str, floor: float | None = None, reward: str | None = None) -> dict[str, Any]:
        """What can be said of a whole run: its stage, the entropy law, when the entropy reaches ``floor`` (nats)."""
        return dict(self.get(f"/v1/runs/{quote(run_id, safe='')}/analysis", floor=floor, reward=reward))

    def desired(self, run_id: str) -> DesiredState:
        """What should be on in a run."""
        return self._parsed(DesiredState, self._request("GET", f"/v1/runs/{quote(run_id, safe='')}/desired"))

    def rules(self) -> list[dict[str, Any]]:
        """The rules that the server holds: name, version, updated, rule."""
        return list(self.get("/v1/rules")["rules"])

    def put_rule(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Take a rule, as the next version of its name."""
        return dict(self.send("PUT", f"/v1/rules/{quote(str(rule.get('name', '')), safe='')}", rule))

    def delete_rule(self, name: str) -> None:
        """Remove a rule."""
        self.send("DELETE", f"/v1/rules/{quote(name, safe='')}")

    def check_rules(self, text: str) -> dict[str, Any]:
        """Rules of a YAML or JSON text, as the server reads them: ``rules`` and ``problems``."""
        return dict(self.send("POST", "/v1/rules/check", {"text": text}))

    def replay_rules(self, run_id: str, text: str | None = None) -> list[dict[str, Any]]:
        """What rules would have done in a run; those that the server holds unless a text is given."""
        body = {} if text is None else {"text": text}
        return list(self.send("POST", f"/v1/runs/{quote(run_id, safe='')}/rules/replay", body)["actions"])

    def interventions(self) -> list[dict[str, Any]]:
        """The catalogue of what can be switched on."""
        return list(self.get("/v1/interventions"))

    def control(self, run_id: str) -> dict[str, Any]:
        """What may be, what should be and what is on in a run."""
        return dict(self.get(f"{_run(run_id)}/control"))

    def effects(self, run_id: str, signals: Sequence[str] | None = None, window: int = 20) -> list[dict[str, Any]]:
        """Means of ``signals`` over ``window`` steps before and after each activation, and while it was on."""
        return list(self.get(f"{_run(run_id)}/effects", signals=signals, window=window)["effects"])

    def switch_on(self, run_id: str, name: str, because: str, person: str | None = None, **wanted: Any) -> DesiredState:
        """Want an intervention on. ``wanted``: params, selection, until_step, expected_version."""
        said = {"because": because, "person": person, **wanted}
        return self._change("PUT", f"{_run(run_id)}/interventions/{quote(name, safe='')}", said)

    def switch_off(self, run_id: str, name: str, because: str, person: str | None = None) -> DesiredState:
        """Want it off."""
        said = {"because": because, "person": person}
        return self._change("DELETE", f"{_run(run_id)}/interventions/{quote(name, safe='')}", said)

    def decide(
        self, run_id: str, proposal_id: str, approve: bool, person: str | None = None, **said: Any
    ) -> DesiredState:
        """Approve what a rule proposes, or dismiss it. ``said``: because, params (in the place of those proposed)."""
        document = {"approve": approve, "person": person, **said}
        return self._change("POST", f"{_run(run_id)}/proposals/{quote(proposal_id, safe='')}", document)

    def stop_all(self, run_id: str, because: str, person: str | None = None) -> DesiredState:
        """The kill switch: everything off from the next step on, and no rule acts until ``arm``."""
        return self._change("POST", f"{_run(run_id)}/stop-all", {"because": because, "person": person})

    def arm(self, run_id: str, because: str, person: str | None = None) -> DesiredState:
        """Things may be switched on again."""
        return self._change("POST", f"{_run(run_id)}/arm", {"because": because, "person": person})

    def whoami(self) -> dict[str, Any]:
        """Name and scopes of the token that is sent; the name is None where the server runs without tokens."""
        return dict(self.get("/v1/whoami"))

    def health(self) -> dict[str, Any]:
        """The server's state and versions; needs no token."""
        return dict(self.get("/healthz"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change(self, method: str, path: str, document: dict[str, Any]) -> DesiredState:
        content = json.dumps(document).encode()
        return self._parsed(DesiredState, self._request(method, path, content=content, content_type="application/json"))

    def _request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        content_type: str | None = None,
        params: dict[str, Any] | None = None,
    ) -> httpx.Response:
        headers = {"Content-Type": content_type} if content_type and content is not None else {}
        kept = {k: v for k, v in (params or {}).items() if v is not None}
        try:
            response = self._http.request(method, path, content=content, params=kept, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise ServerDown(self.url, str(error) or type(error).__name__) from error
        if not response.is_success:
            raise refusal(response)
        return response

    def _document(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise ServerDown(self.url, "what answers there does not speak JSON") from error

    def _parsed(self, kind: type[_Answer], response: httpx.Response) -> _Answer:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise ServerDown(self.url, f"the answer is not a {kind.__name__}: {error.errors()[0]['msg']}") from error


def _run(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


def without_credentials(url: str) -> str:
    """``url`` as it may be shown and logged: the name and password of ``http://name:password@host`` left out."""
    scheme, slashes, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{place.rpartition('@')[2]}{slash}{path}"


def _checked_token(token: str | None) -> str:
    token = (token or "").strip()
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token holds characters that no token has: check ENTROSTAT_TOKEN")
    return token


def _url_parts(url: str) -> httpx.URL:
    shown = without_credentials(url)
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{shown!r} is not an address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError(f"{shown!r} is not an address: write it as http://host:8321 (ENTROSTAT_URL)")
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(response: httpx.Response) -> Refused:
    """What an answer that is an error says."""
    try:
        body = response.json()
        code, message = str(body["error"]), str(body["message"])
        place = ", ".join(f"{key} {body[key]}" for key in ("table", "column") if body.get(key))
    except (ValueError, KeyError, TypeError, AttributeError):  # a proxy's page, say
        code, message, place = f"http_{response.status_code}", response.text[:200], ""
    message = f"{message} ({place})" if place and place not in message else message
    return Refused(response.status_code, code, message, retry_after_s(response.headers.get("Retry-After")))


@dataclass(frozen=True, slots=True)
class PushProgress:
    """Where a push is: called after each batch of ``stream``."""

    stream: PendingStream
    num_sent: int
    bytes_sent: int


@dataclass(slots=True)
class PushReport:
    """What a push did.

    Args:
        num_sent: batches that the server holds now, ``num_duplicates`` of them it held before.
        bytes_sent: their size.
        num_rejected: batches that it will never take, kept aside under ``rejected/`` with the reason.
        num_live: streams left to the running processes that hold them.
        problems: what could not be sent, in sentences; empty where all went well.
    """

    num_sent: int = 0
    num_duplicates: int = 0
    bytes_sent: int = 0
    num_rejected: int = 0
    num_live: int = 0
    problems: list[str] = field(default_factory=list)


def push(
    root: Path,
    client: Client,
    on_progress: Callable[[PushProgress], None] = lambda _: None,
    patience_s: float = 60.0,
    restore: Restore | None = None,
) -> PushReport:
    """Send every stream under ``root`` that no live process holds, oldest first; remove what the server took.

    Args:
        patience_s: how long a server that is away or busy is tried before giving up; nothing is lost by giving up.
        restore: reduces steps that a killed process had handed over; ``probe.stored_step.restore``, where torch is.

    Raises:
        SpoolError: ``root`` is not a directory or cannot be read.
    """
    report = PushReport()
    found = [p for p in pending_streams(root) if p.num_batches]
    report.num_live = sum(p.is_live for p in found)
    held: list[tuple[PendingStream, SpoolStream]] = []
    try:
        for pending in found:
            if not pending.is_live:
                _adopt(pending, restore, held, report)
        # The server names a second session of a run by the order in which it hears of them.
        held.sort(key=lambda pair: (pair[1].opening.started.timestamp(), pair[1].opening.rank))
        for pending, stream in held:
            if not _push_stream(pending, stream, client, report, on_progress, patience_s):
                break
    finally:
        for _, stream in held:
            stream.release()
    sweep(root)
    return report


def _adopt(
    pending: PendingStream,
    restore: Restore | None,
    held: list[tuple[PendingStream, SpoolStream]],
    report: PushReport,
) -> None:
    try:
        stream = SpoolStream.adopt(pending.path, restore)
        held.append((pending, stream))
        report.problems.extend(stream.problems)
    except SpoolBusy:
        report.num_live += 1
    except SpoolError as error:
        if pending.path.exists():  # else another push sent and removed it meanwhile
            report.problems.append(str(error))


def _push_stream(
    pending: PendingStream,
    stream: SpoolStream,
    client: Client,
    report: PushReport,
    on_progress: Callable[[PushProgress], None],
    patience_s: float,
) -> bool:
    """Whether it is worth going on with the next stream."""
    num_sent, bytes_sent = 0, 0
    try:
        _patiently(lambda: client.open_stream(stream.stream_id, stream.opening), patience_s)
        for seq, size in stream.pending():
            try:
                ack = _patiently(lambda s=seq: _post(client, stream, s), patience_s)  # type: ignore[misc]
            except Refused as error:
                if verdict_on(error) is not Verdict.SET_ASIDE:
                    raise
                stream.reject(seq, {"status": error.status, "error": error.code, "message": error.message})
                report.num_rejected += 1
                continue
            stream.delete(seq)
            num_sent, bytes_sent = num_sent + 1, bytes_sent + size
            report.num_sent, report.bytes_sent = report.num_sent + 1, report.bytes_sent + size
            report.num_duplicates += ack.duplicate
            on_progress(PushProgress(pending, num_sent, bytes_sent))
    except Refused as error:
        report.problems.append(f"stream {stream.path}: {error}")
        return verdict_on(error) is Verdict.SET_ASIDE  # this stream's opening was refused; the next may pass
    except (ServerDown, OSError) as error:
        report.problems.append(f"stream {stream.path}: {error}")
        return False
    return True


def _post(client: Client, stream: SpoolStream, seq: int) -> Ack:
    try:
        return client.post_batch(stream.stream_id, seq, stream.read(seq))
    except Refused as error:
        if verdict_on(error) is Verdict.REOPEN:
            client.open_stream(stream.stream_id, stream.opening)
        raise


_Result = TypeVar("_Result")


def _patiently(action: Callable[[], _Result], patience_s: float) -> _Result:
    backoff, deadline = Backoff(), time.monotonic() + patience_s
    while True:
        try:
            return action()
        except (Refused, ServerDown) as error:
            wait_s = backoff.after(error)
            hopeless = verdict_on(error) not in (Verdict.RETRY, Verdict.REOPEN)
            if hopeless or time.monotonic() + wait_s > deadline:
                raise
            time.sleep(wait_s)
