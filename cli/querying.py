"""``sql`` and ``runs``: questions to a server, or straight to a database file that no server holds."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrostat.cli import transfers
from entrostat.cli.options import DEFAULT_URL, Token, Url, client
from entrostat.cli.output import Format, write

if TYPE_CHECKING:
    import pyarrow as pa

runs = typer.Typer(help="List, show, analyse, tag, export, import and delete runs.", no_args_is_help=True)

Form = Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file.", show_default=False)]


def sql(
    statement: Annotated[str, typer.Argument(help="One SELECT; '-' reads it from standard input.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    database: Annotated[
        Path | None, typer.Option(help="A database file that no server has open, in the place of a server.")
    ] = None,
    exports: Annotated[
        list[Path] | None,
        typer.Option("--from", help="What `runs export` wrote, in the place of a server; several make one database."),
    ] = None,
    form: Form = Format.table,
    out: Out = None,
    max_rows: Annotated[int, typer.Option(help="Cut the result after this many rows (and say so).")] = 10_000,
) -> None:
    """Ask in SQL, over the views run, step, step_metric, histogram, sequence, token, event (docs/sql.md)."""
    text = sys.stdin.read() if statement == "-" else statement
    if database and exports:
        raise typer.BadParameter("--database and --from are two places: give one")
    if exports:
        result, is_cut = _ask_exports(exports, text, max_rows)
    else:
        result, is_cut = _ask_file(database, text, max_rows) if database else client(url, token).sql(text, max_rows)
    write(result, form, out)
    if is_cut:
        # Fewer than were asked for: it was the server that cut.
        way_out = (
            "--max-rows gives more"
            if result.num_rows >= max_rows
            else "the limit of the server on rows and bytes: ask for fewer columns, a part, or an aggregate"
        )
        print(f"entrostat: cut after {result.num_rows} rows; {way_out}", file=sys.stderr)


def _ask_file(database: Path, statement: str, max_rows: int) -> tuple["pa.Table", bool]:
    from entrostat.storage.store import Store
    from entrostat.wire.errors import EntrostatError, NotFound

    if not database.exists():
        raise NotFound(f"no database at {database}")
    with Store(f"duckdb://{database.resolve()}") as store:
        try:
            answer = store.query(statement, max_rows=max_rows)
        except EntrostatError as error:
            if store.num_queries:  # the interpreter cannot end beside a thread that is inside the engine: it aborts
                print(f"entrostat: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            raise
        return answer.table, answer.is_truncated


def _ask_exports(paths: list[Path], statement: str, max_rows: int) -> tuple["pa.Table", bool]:
    from entrostat.storage.exports.asking import ExportedRuns

    with ExportedRuns(paths) as held:
        for path, run_id in held.renamed.items():
            print(f"entrostat: the run of {path} is called {run_id} here: its name was taken", file=sys.stderr)
        answer = held.query(statement, max_rows)
    return answer.table, answer.is_truncated


@runs.command("list")
def list_runs(
    search: Annotated[str, typer.Argument(help="Part of a name or tag.")] = "",
    url: Url = DEFAULT_URL,
    token: Token = None,
    form: Form = Format.table,
    out: Out = None,
) -> None:
    """The runs a server has, newest first."""
    found = client(url, token).get("/v1/runs", search=search, limit=1000)["runs"]
    rows = [_summary(run) for run in found]
    if not rows:
        print(
            "entrostat: no runs" + (f" match {search!r}" if search else " yet: entrostat.attach(trainer)"),
            file=sys.stderr,
        )
        return
    import pyarrow as pa

    write(pa.Table.from_pylist(rows), form, out)


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    latest = run.get("latest") or {}
    shown = ("entropy_mean", "reward_mean", "pass_at_1", "d_collapse")
    return {
        "run": run["run"],
        "status": run["status"],
        "step": run["last_step"],
        **{name: latest.get(name) for name in shown},
        "tags": " ".join(f"{k}={v}" for k, v in (run.get("tags") or {}).items()),
        "last_seen": run["last_seen"],
        "tokens_removed": run["tokens_removed"],
    }


@runs.command("show")
def show(run: str, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Everything a run says of itself, as JSON."""
    print(json.dumps(client(url, token).get(f"/v1/runs/{run}"), indent=2, default=str))


@runs.command("analyse")
def analyse(
    run: str,
    url: Url = DEFAULT_URL,
    token: Token = None,
    floor: Annotated[
        float | None, typer.Option(help="The entropy, in nats, that the forecast is for (0.1).", show_default=False)
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="The signal for R of the entropy law.", show_default="an evaluated reward, else reward_mean"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As the server says it.")] = False,
) -> None:
    """What can be said of a whole run: its stage, the entropy law with its ceiling, when the entropy is used up."""
    found = client(url, token).analysis(run, floor, reward)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, statement in (
        ("stage", _stage), ("entropy_law", _entropy_law), ("entropy_floor_forecast", _floor_forecast)
    ):  # fmt: skip
        refused = found[name]["refused"]
        print(f"{name}: " + (f"cannot be said: {refused}" if refused else statement(found)))


def _stage(found: dict[str, Any]) -> str:
    stage = found["stage"]
    since = "" if stage["plateau_from"] is None else f" since step {stage['plateau_from']}"
    return f"{stage['stage']}{since}; the entropy has spanned {stage['entropy_range']:.4g} nats"


def _entropy_law(found: dict[str, Any]) -> str:
    law = found["entropy_law"]
    return (
        f"{found['reward']} = {-law['a']:.4g} exp(H) {law['b']:+.4g}, rmse {law['rmse']:.3g} over {law['num_points']} "
        f"points; ceiling {law['ceiling']:.4g} ({law['ceiling_low']:.4g} to {law['ceiling_high']:.4g}, 95 %)"
    )


def _floor_forecast(found: dict[str, Any]) -> str:
    forecast = found["entropy_floor_forecast"]
    return (
        f"{forecast['floor']:g} nats at step {forecast['step']} ({forecast['step_low']} to {forecast['step_high']}, "
        f"95 %), {forecast['trend']} trend"
    )


@runs.command("tag")
def tag(
    run: str,
    tags: Annotated[list[str], typer.Argument(help="name=value ...; an empty value removes the tag.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Set tags of a run."""
    if wrong := [t for t in tags if "=" not in t]:
        raise typer.BadParameter(f"{wrong[0]!r} is not name=value")
    server = client(url, token)
    kept = dict(server.get(f"/v1/runs/{run}").get("tags") or {})
    kept |= dict(t.split("=", 1) for t in tags)
    server.send("PATCH", f"/v1/runs/{run}", {"tags": {k: v for k, v in kept.items() if v}})


transfers.add_to(runs)
