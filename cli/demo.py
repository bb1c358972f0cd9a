"""``demo``: the whole path on this machine: a small model is taught, trained with GRPO, watched, and asked in SQL."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrostat.cli.serving import dashboard_command, server_command

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from entrostat.lab.many_answers.arms import Arm, Result
    from entrostat.lab.many_answers.evaluate import Evaluation
    from entrostat.wire.client import Client

COMPARED = "entropy_mean,d_collapse,pass_at_1,pass_at_8,trainer/eval/pass_at_1,trainer/eval/distinct_right"


def demo(
    steps: Annotated[int, typer.Option(min=2, help="GRPO steps; 60 take about ten seconds.")] = 150,
    exit_: Annotated[bool, typer.Option("--exit", help="Stop when trained; the last line is one JSON object.")] = False,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Start only the server.")] = False,
    data: Annotated[Path, typer.Option("--data", help="Folder of the database.")] = Path("entrostat-data"),
    port: Annotated[int, typer.Option(help="The server's port; another free one is taken if it is in use.")] = 8321,
    dashboard_port: Annotated[int, typer.Option(help="The dashboard's, likewise.")] = 8050,
    seed: int = 0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Twice, with the same seed: GRPO alone, and under the thermostat.")
    ] = False,
) -> None:
    """Train a small model with everything attached, and watch its entropy fall.

    The task has many right answers per prompt (``17=`` is answered by any ``a+b`` with that sum). Supervised teaching
    comes first; then GRPO makes the model right more often, and its answers fewer. With ``--compare`` a second run
    has a rule that holds the entropy by SCOPE's weight.
    """
    # Before torch is imported: on small models threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rich.console import Console

    from entrostat.cli.processes import Processes
    from entrostat.lab.many_answers import teach
    from entrostat.lab.many_answers.arms import PLAIN, SETTINGS, TEACH_STEPS, THERMOSTAT
    from entrostat.wire.client import Client

    console = Console(stderr=True, highlight=False)
    port, dashboard_port = free_port(port), free_port(dashboard_port)
    server_url = f"http://127.0.0.1:{port}"
    with Processes() as processes:
        processes.start("server", server_command(data, "127.0.0.1", port), quiet=True)
        processes.wait_for(f"{server_url}/healthz", "server")
        console.print(f"server     {server_url}   (database in {data})")
        if not no_dashboard:
            processes.start("dashboard", dashboard_command(server_url, "127.0.0.1", dashboard_port), quiet=True)
            processes.wait_for(f"http://127.0.0.1:{dashboard_port}/", "dashboard")
            console.print(f"dashboard  http://127.0.0.1:{dashboard_port}   (open it: the run appears when GRPO begins)")
        client = Client(server_url)
        taught = _teach(console, seed, TEACH_STEPS if compare else teach.STEPS)
        arms = (PLAIN, THERMOSTAT) if compare else (PLAIN,)
        settings = SETTINGS if compare else {}
        results = [_train(console, client, taught, arm, data, steps, seed, settings) for arm in arms]
        outcome = _outcome(client, results[0]) if not compare else _comparison(client, taught, arms, results, seed)
        outcome["database"] = str((data / "entrostat.duckdb").resolve())
        _show(console, taught.before, arms, results)
        runs = ",".join(r.run_id for r in results)
        if compare and not no_dashboard:
            page = f"http://127.0.0.1:{dashboard_port}/compare?runs={runs}&signals={COMPARED}"
            outcome["page"] = page
            console.print(f"\nside by side:   {page}", soft_wrap=True)
        console.print(
            f"\nask it in SQL:  entrostat sql --url {server_url} "
            f"\"select step, entropy_mean, pass_at_1 from step where run = '{results[-1].run_id}' order by step\"",
            soft_wrap=True,
        )
        if not exit_:
            print(json.dumps(outcome), flush=True)
            console.print("server and dashboard stay up; stop with Ctrl+C")
            processes.wait_until_stopped()
    if exit_:
        print(json.dumps(outcome), flush=True)


def free_port(port: int) -> int:
    """``port`` if nobody listens there, else one that is free."""
    for candidate in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError("no free port on the loopback interface")


@dataclass(frozen=True, slots=True)
class _Taught:
    model: Any
    tokenizer: Any
    before: "Evaluation"


def _teach(console: "Console", seed: int, steps: int) -> _Taught:
    from entrostat.lab.many_answers import evaluate, task, teach

    tokenizer = task.make_tokenizer()
    model = teach.make_model(tokenizer, seed=seed)
    with _progress(console) as progress:
        teaching = progress.add_task("teaching (supervised)", total=steps)
        teach.teach(
            model, tokenizer, seed=seed, steps=steps, on_progress=lambda n, _: progress.update(teaching, completed=n)
        )
    return _Taught(model, tokenizer, evaluate.evaluate(model, tokenizer, seed=seed))


def _train(
    console: "Console",
    client: "Client",
    taught: _Taught,
    arm: "Arm",
    data: Path,
    steps: int,
    seed: int,
    settings: Mapping[str, Any],
) -> "Result":
    import secrets
    import tempfile
    import warnings

    from entrostat.lab.many_answers.arms import run_arm

    # transformers speaks of its own settings' new names, in the middle of the progress display.
    warnings.filterwarnings("ignore", category=FutureWarning)
    with _progress(console) as progress, tempfile.TemporaryDirectory() as scratch:
        training = progress.add_task(arm.label, total=steps)
        return run_arm(
            arm,
            client,
            taught.model,
            taught.tokenizer,
            run=f"{arm.name}-{seed}-{secrets.token_hex(3)}",
            steps=steps,
            seed=seed,
            directory=data / "spool",
            scratch=scratch,
            on_step=lambda step: progress.update(training, completed=step),
            **settings,
        )


def _progress(console: "Console") -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _comparison(
    client: "Client", taught: _Taught, arms: "Sequence[Arm]", results: "Sequence[Result]", seed: int
) -> dict[str, Any]:
    """What each arm came to: fresh samples, and what the database says of the entropy and of what was switched."""
    from entrostat.lab.many_answers.arms import BAND, HELD_AT, evaluated

    compared: dict[str, Any] = {"seed": seed, "held_at": HELD_AT, "band": BAND, "before": evaluated(taught.before)}
    for arm, result in zip(arms, results, strict=True):
        held = _one(
            client,
            f"select avg((abs(entropy_mean - {HELD_AT}) <= {BAND})::int) as in_band, avg(entropy_mean) as entropy_mean "
            "from step where run = $run and step > (select max(step) / 2 from step where run = $run)",
            result.run_id,
        )
        switched = "select count(*) as n from event where run = $run and kind like 'intervention\\_%' escape '\\'"
        compared[arm.name] = {
            **_outcome(client, result),
            **evaluated(result.after),
            "second_half": held,
            "switches": _one(client, switched, result.run_id)["n"],
        }
    return compared


def _one(client: "Client", statement: str, run_id: str) -> dict[str, Any]:
    table, _ = client.sql(statement.replace("$run", f"'{run_id}'"))
    return dict(table.to_pylist()[0])


def _outcome(client: "Client", result: "Result") -> dict[str, Any]:
    """What the database says of a run: the demo reports nothing that was not stored."""
    ends = _one(
        client,
        "select count(*) as steps, arg_min(entropy_mean, step) as entropy_first, arg_max(entropy_mean, step) as "
        "entropy_last, arg_min(pass_at_1, step) as pass1_first, arg_max(pass_at_1, step) as pass1_last "
        "from step where run = $run",
        result.run_id,
    )
    token_rows = _one(client, "select count(*) as n from token where run = $run", result.run_id)["n"]
    stored = _one(client, "select count(*) as n from batch where run = $run", result.run_id)["n"]
    return {
        "run_id": result.run_id,
        "steps": ends["steps"],
        "token_rows": token_rows,
        "entropy_first": ends["entropy_first"],
        "entropy_last": ends["entropy_last"],
        "pass1_first": ends["pass1_first"],
        "pass1_last": ends["pass1_last"],
        "batches_sent": result.batches_written,
        "batches_stored": stored,
    }


def _show(console: "Console", before: "Evaluation", arms: "Sequence[Arm]", results: "Sequence[Result]") -> None:
    from rich.table import Table

    table = Table("sampled afresh, all prompts", "taught", *(arm.label for arm in arms), box=None, header_style="bold")
    found = [before, *(r.after for r in results)]
    table.add_row("entropy (nats)", *(f"{e.entropy:.2f}" for e in found))
    table.add_row("pass@1", *(f"{e.pass1:.2f}" for e in found))
    table.add_row("pass@8", *(f"{e.pass_at[8]:.2f}" for e in found))
    table.add_row("distinct right answers of 32", *(f"{e.distinct_right:.1f}" for e in found))
    console.print(table)
