"""One start of a trainer, seen from one rank: its settings, its stream, its recorder."""

import contextlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from entrostat.probe.definitions import Settings
from entrostat.probe.recorder import Recorder
from entrostat.probe.reduce import Reducer
from entrostat.probe.text.decode import Texts
from entrostat.probe.text.quality import AnswerFinder
from entrostat.probe.text.reader import Reader
from entrostat.trainer_adapters import run_info
from entrostat.trainer_adapters.controller import Intent
from entrostat.wire.errors import BadParameter, SpoolError
from entrostat.wire.interventions import named
from entrostat.wire.messages import DesiredState, Mode, Permissions, StreamOpen
from entrostat.wire.redaction import redacted_tags
from entrostat.wire.sender import Sender
from entrostat.wire.signals import FAMILIES

log = logging.getLogger("entrostat")

_OPTIONAL = FAMILIES.keys() - {"cost"}
DEFAULT_URL = "http://localhost:8321"


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose at ``attach``; see there.

    Raises:
        ValueError: with the option's name, what was found and what it may be.
    """

    run: str | None = None
    url: str | None = None
    token: str | None = None
    directory: Path | None = None
    tags: dict[str, str] = field(default_factory=dict)
    tokens: int | Literal["all"] = 4096
    candidates: int = 8
    keep_candidates: int = 3
    baseline_steps: int = 5
    correct_at: float = 1.0
    without: frozenset[str] = frozenset()
    answer_pattern: str | None = None
    keep_text: bool = False
    head: Literal["trainer", "entrostat"] = "trainer"
    mode: Mode = Mode.observe
    allow: frozenset[str] | None = None
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    grace_s: float = 600.0
    on_lost: Literal["hold", "revert"] = "hold"

    def __post_init__(self) -> None:
        if self.tokens != "all" and (not isinstance(self.tokens, int) or self.tokens < 0):
            raise ValueError(f"tokens={self.tokens!r}: give a number of token rows per step and rank, or 'all'")
        if not 3 <= self.candidates <= 64:
            raise ValueError(f"candidates={self.candidates}: rank_logp_1 to 3 need at least 3, and 64 is the most")
        if self.head not in ("trainer", "entrostat"):
            raise ValueError(f"head={self.head!r}: it is 'trainer' or 'entrostat'")
        if self.baseline_steps < 1:
            raise ValueError(
                f"baseline_steps={self.baseline_steps}: the baseline of d_collapse needs at least one step"
            )
        for name in self.allow or ():
            named(name)  # says which there are
        for where, (low, high) in self.bounds.items():
            _check_bound(where, low, high)
        if self.grace_s <= 0 or self.on_lost not in ("hold", "revert"):
            raise ValueError(
                f"grace_s={self.grace_s}, on_lost={self.on_lost!r}: seconds above 0, and 'hold' or 'revert'"
            )
        AnswerFinder(self.answer_pattern)  # says what is wrong with a pattern
        if unknown := self.without - _OPTIONAL:
            raise ValueError(
                f"without={sorted(unknown)}: the families that can be switched off are {sorted(_OPTIONAL)}"
            )

    @property
    def budget(self) -> int | None:
        """Token rows per step; None for all."""
        return None if self.tokens == "all" else self.tokens


def _check_bound(where: str, low: float, high: float) -> None:
    name, _, param = where.partition(".")
    known = [p.name for p in named(name).params]
    if param not in known:
        raise BadParameter(f"bounds[{where!r}]: {name} has the parameters {', '.join(known) or 'none'}")
    if low > high:
        raise BadParameter(f"bounds[{where!r}]=({low}, {high}): the lowest value is above the highest")


def from_environment(**given: Any) -> Options:
    """Options, those not given taken from ENTROSTAT_URL, _TOKEN, _RUN, _DIR, _HEAD, _MODE, _ALLOW and _BOUNDS.

    ``ENTROSTAT_ALLOW`` has names with commas between, ``ENTROSTAT_BOUNDS`` is like ``kl_cov.beta=0:2,scope.lam=0:1``.

    Raises:
        ValueError: an option out of range, or bounds that cannot be read.
        BadParameter: ``allow`` or ``bounds`` name something that does not exist.
    """
    names = {
        "url": "ENTROSTAT_URL", "token": "ENTROSTAT_TOKEN", "run": "ENTROSTAT_RUN", "directory": "ENTROSTAT_DIR",
        "head": "ENTROSTAT_HEAD", "mode": "ENTROSTAT_MODE", "allow": "ENTROSTAT_ALLOW", "bounds": "ENTROSTAT_BOUNDS",
    }  # fmt: skip
    found: dict[str, Any] = {name: os.environ[var] for name, var in names.items() if os.environ.get(var)}
    if "allow" in found:
        found["allow"] = [name.strip() for name in found["allow"].split(",") if name.strip()]
    if "bounds" in found:
        found["bounds"] = dict(_bound(part) for part in found["bounds"].split(",") if part.strip())
    merged: dict[str, Any] = {**found, **{k: v for k, v in given.items() if v is not None}}
    merged.setdefault("url", DEFAULT_URL)
    if merged.get("directory") is not None:
        merged["directory"] = Path(merged["directory"])
    for name in ("without", "allow"):
        if name in merged:
            merged[name] = frozenset(merged[name])
    if "mode" in merged:
        if merged["mode"] not in list(Mode):
            raise ValueError(f"mode={merged['mode']!r}: it is one of {', '.join(Mode)}")
        merged["mode"] = Mode(merged["mode"])
    return Options(**merged)


def _bound(text: str) -> tuple[str, tuple[float, float]]:
    where, _, both = text.partition("=")
    low, _, high = both.partition(":")
    try:
        return where.strip(), (float(low), float(high))
    except ValueError:
        raise ValueError(f"ENTROSTAT_BOUNDS: {text!r} is not like kl_cov.beta=0:2") from None


def spool_root(options: Options) -> Path:
    """Where batches wait: the option, or ``entrostat/spool`` in the user's data folder."""
    if options.directory is not None:
        return options.directory
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "entrostat" / "spool"


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the trainer's ranks, and what all of them share."""

    run_id: str
    session_id: str
    rank: int = 0
    world_size: int = 1
    resume_step: int | None = None


class Session:
    """A recorder and the sender behind it, from the first step to the last.

    Args:
        options: the user's choices.
        place: this rank's.
        trainer: class name of the trainer, for the record.
        config: the trainer's settings, plain JSON values.
        definitions: what the signals' definitions depend on.
        notes: more of the probe's settings, for the record.
        permissions: what may be done to the run; nothing by default.
    """

    def __init__(
        self,
        options: Options,
        place: Place,
        trainer: str,
        config: dict[str, Any],
        definitions: Settings,
        notes: dict[str, Any],
        permissions: Permissions | None = None,
    ) -> None:
        self.options, self.place = options, place
        self.permissions = permissions or Permissions()
        self._began = time.monotonic()
        opening = _opening(options, place, trainer, config, definitions, notes, self.permissions)
        self.sender, moved = _sender(opening, options, place)
        self.definitions = replace(definitions, num_ranks=place.world_size, without=options.without)
        reducer = Reducer(self.definitions, options.keep_candidates, says_absences=place.rank == 0)
        self.recorder = Recorder(self.sender, reducer)
        self._warned: set[str] = set()
        if moved is not None:
            self.warn_once(moved)
        if place.resume_step is None:
            self.recorder.event("run_started", f"{trainer} started", 0, rank=place.rank)
        else:
            self.recorder.event(
                "resumed", f"{trainer} resumed after step {place.resume_step}", place.resume_step, rank=place.rank
            )

    @property
    def run_id(self) -> str:
        """The run's name, as the server knows it once it has answered."""
        return self.sender.run_id

    @property
    def desired(self) -> DesiredState:
        """What the server wants to be on, as of its last answer."""
        return self.sender.desired

    def intent(self, waited_s: float = 0.0) -> Intent:
        """What the server wants, as this rank has heard it."""
        silent_s = self.sender.silent_s
        has_heard = math.isfinite(silent_s)
        if not has_heard:
            silent_s = time.monotonic() - self._began
        is_lost = silent_s > self.permissions.grace_s
        return Intent(self.desired, self.sender.thresholds, is_lost, has_heard, waited_s)

    def say(self, kind: str, message: str, step: int, detail: dict[str, Any]) -> None:
        """One event of the controller; rank 0 speaks for all."""
        if self.place.rank == 0:
            log.info("step %d: %s", step, message)
            self.recorder.event(kind, message, step, **detail)

    def read_texts(self, texts: Texts) -> None:
        """Read the responses' texts from now on; nothing where the family is switched off."""
        if "text" not in self.definitions.without:
            answers = AnswerFinder(self.options.answer_pattern)
            self.recorder.reducer.reader = Reader(texts, answers, self.options.keep_text)

    @property
    def reads_texts(self) -> bool:
        """Whether texts are read, so that the prompts' tokens are of use."""
        return self.recorder.reducer.reader is not None

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Whatever goes wrong inside is ours, not the run's: said once, recorded, never raised."""
        began = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001  the promise of design.md: a probe never makes training fail
            self.warn_once(f"{doing} failed: {type(error).__name__}: {error}", exc_info=True)
        finally:
            self.recorder.spent(time.perf_counter() - began)

    def warn_once(self, message: str, exc_info: bool = False) -> None:
        """Log a warning and record it as an event, the first time it comes up."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s (training goes on)", message, exc_info=exc_info)
            self.recorder.event("warning", message)

    def end(self, step: int, timeout_s: float = 5.0) -> None:
        """The last step is done: send what is left for at most ``timeout_s``; the rest waits in the spool."""
        self.recorder.event("run_ended", "training ended", step, rank=self.place.rank)
        self.sender.close(timeout_s)


def _sender(opening: StreamOpen, options: Options, place: Place) -> tuple[Sender, str | None]:
    """The stream's sender; and what to say where it spools elsewhere than asked.

    One process is told at its start that its directory cannot be used. One rank of several must not stop there: the
    others would wait for it in their next collective until that times out.

    Raises:
        SpoolError: the directory cannot be used, and this is the only rank, or no other directory can be either.
    """
    root = spool_root(options)
    try:
        return Sender(opening, url=options.url, token=options.token, root=root), None
    except SpoolError as error:
        if place.world_size == 1:
            raise
        elsewhere = Path(tempfile.mkdtemp(prefix="entrostat-spool-"))
        sender = Sender(opening, url=options.url, token=options.token, root=elsewhere)
        return sender, f"rank {place.rank} spools to {elsewhere} instead: {error}"


def _opening(
    options: Options,
    place: Place,
    trainer: str,
    config: dict[str, Any],
    definitions: Settings,
    notes: dict[str, Any],
    permissions: Permissions,
) -> StreamOpen:
    name, pid = run_info.host()
    settings = {
        "tokens": options.tokens,
        "candidates": options.candidates,
        "keep_candidates": options.keep_candidates,
        "baseline_steps": options.baseline_steps,
        "without": sorted(options.without),
        "answer_pattern": options.answer_pattern,
        "keep_text": options.keep_text,
        "correct_at": definitions.correct_at,
        "group_size": definitions.group_size,
        "eps_low": definitions.eps_low,
        "eps_high": definitions.eps_high,
        **notes,
    }
    return StreamOpen(
        run_id=place.run_id,
        session_id=place.session_id,
        rank=place.rank,
        world_size=place.world_size,
        resume_step=place.resume_step,
        started=datetime.now(UTC),
        host=name,
        pid=pid,
        trainer=trainer,
        git_commit=run_info.git_commit(),
        versions=run_info.versions(),
        tags=redacted_tags(options.tags),
        config=config,
        settings=settings,
        permissions=permissions,
    )
