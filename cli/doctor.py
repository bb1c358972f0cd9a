"""``doctor``: is everything in place?"""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from entrostat.cli.options import DEFAULT_URL, Token, Url, client

Finding = tuple[str, str]


class TrainerName(StrEnum):
    """What ``--trainer`` takes."""

    trl = "trl"
    transformers = "transformers"
    verl = "verl"
    vllm = "vllm"
    all = "all"


Trainer = Annotated[
    TrainerName | None,
    typer.Option(help="Only: is this trainer, as it is installed here, one that entrostat can attach to?"),
]


def doctor(url: Url = DEFAULT_URL, token: Token = None, trainer: Trainer = None) -> None:
    """Check versions, trainers, server, token, clock, spool and disk; exit status 1 when something needs doing."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": _versions,
        "trainers": lambda: _trainers(TrainerName.all, also_absent=False),
        "server": lambda: _server(url, token),
        "spool": _spool,
    }
    if trainer is not None:
        checks = {"trainers": lambda: _trainers(trainer, also_absent=True)}
    is_well = True
    for name, check in checks.items():
        for mark, text in _findings(check):
            is_well &= mark != "FIX"
            print(f"{mark:>4}  {name:<9} {text}")
    if not is_well:
        raise typer.Exit(1)


def _findings(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    from entrostat.wire.errors import EntrostatError

    try:
        yield from check()
    except (EntrostatError, OSError) as error:
        yield "FIX", str(error)


def _versions() -> Iterator[Finding]:
    from entrostat.trainer_adapters.run_info import versions

    yield "ok", ", ".join(f"{name} {version}" for name, version in versions().items())


def _trainers(wanted: TrainerName, also_absent: bool) -> Iterator[Finding]:
    from entrostat.trainer_adapters.hooks import TRAINERS
    from entrostat.trainer_adapters.installed import report

    for trainer in TRAINERS.values():
        if wanted in (TrainerName.all, trainer.name):
            for mark, text in report(trainer, trainer.installed()):
                if also_absent or mark != "-":
                    yield mark, text


def _server(url: str, token: str | None) -> Iterator[Finding]:
    from entrostat.wire.tables import PROTOCOL

    server = client(url, token)
    health = server.get("/healthz")
    is_understood = health["protocol"] >= PROTOCOL  # a newer server reads what we send
    yield "ok" if is_understood else "FIX", f"{server.url}: version {health['version']}, protocol {health['protocol']}"
    server.get("/v1/runs", limit=1)
    yield "ok", "the token may read" if token else "no token is asked for"
    if "time" in health:
        theirs = datetime.fromisoformat(health["time"])
        off_s = abs((datetime.now(UTC) - theirs.astimezone(UTC)).total_seconds())
        yield "ok" if off_s < 5 else "FIX", f"clocks differ by {off_s:.1f} s"


def _spool() -> Iterator[Finding]:
    from entrostat.trainer_adapters.session import from_environment, spool_root
    from entrostat.wire.spool import pending_streams

    root = spool_root(from_environment())
    root.mkdir(parents=True, exist_ok=True)
    waiting = list(pending_streams(root))
    batches = sum(stream.num_batches for stream in waiting)
    text = f"{root}: {batches} batches wait" + (": entrostat push" if batches else "")
    yield "ok" if not batches else "FIX", text
    free_gib = shutil.disk_usage(root).free / 2**30
    yield "ok" if free_gib > 1 else "FIX", f"{free_gib:.1f} GiB free"
