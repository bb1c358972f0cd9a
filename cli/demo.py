"""``demo``: the whole path on this machine: a small model is taught, trained with GRPO, watched, and asked in SQL."""

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrostat.cli.serving import dashboard_command, server_command

if TYPE_CHECKING:
    from rich.console import Console

    from entrostat.wire.client import Client


def demo(
    steps: Annotated[int, typer.Option(min=2, help="GRPO steps; 60 take about ten seconds.")] = 150,
    exit_: Annotated[bool, typer.Option("--exit", help="Stop when trained; the last line is one JSON object.")] = False,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Start only the server.")] = False,
    data: Annotated[Path, typer.Option("--data", help="Folder of the database.")] = Path("entrostat-data"),
    port: Annotated[int, typer.Option(help="The server's port; another free one is taken if it is in use.")] = 8321,
    dashboard_port: Annotated[int, typer.Option(help="The dashboard's, likewise.")] = 8050,
    seed: int = 0,
) -> None:
    """Train a small model with everything attached, and watch its entropy fall.

    The task has many right answers per prompt (``17=`` is answered by any ``a+b`` with that sum). Supervised teaching
    comes first; then GRPO makes the model right more often, and its answers fewer.
    """
    # Before torch is imported: on small models threads only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rich.console import Console

    from entrostat.cli.processes import Processes

    console = Console(stderr=True, highlight=False)
    port, dashboard_port = _free(port), _free(dashboard_port)
    server_url = f"http://127.0.0.1:{port}"
    with Processes() as processes:
        processes.start("server", server_command(data, "127.0.0.1", port), quiet=True)
        processes.wait_for(f"{server_url}/healthz", "server")
        console.print(f"server     {server_url}   (database in {data})")
        if not no_dashboard:
            processes.start("dashboard", dashboard_command(server_url, "127.0.0.1", dashboard_port), quiet=True)
            processes.wait_for(f"http://127.0.0.1:{dashboard_port}/", "dashboard")
            console.print(f"dashboard  http://127.0.0.1:{dashboard_port}   (open it: the run appears when GRPO begins)")
        outcome = _train(console, server_url, data, steps, seed)
        console.print(
            f"\nask it in SQL:  entrostat sql --url {server_url} "
            f"\"select step, entropy_mean, pass_at_1 from step where run = '{outcome['run_id']}' order by step\"",
            soft_wrap=True,
        )
        if not exit_:
            print(json.dumps(outcome), flush=True)
            console.print("server and dashboard stay up; stop with Ctrl+C")
            processes.wait_until_stopped()
    if exit_:
        print(json.dumps(outcome), flush=True)


def _free(port: int) -> int:
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


def _train(console: "Console", url: str, data: Path, steps: int, seed: int) -> dict[str, Any]:
    import tempfile
    import warnings

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    import entrostat
    from entrostat.lab.many_answers import evaluate, grpo, task, teach
    from entrostat.wire.client import Client

    # transformers speaks of its own settings' new names, in the middle of the progress display.
    warnings.filterwarnings("ignore", category=FutureWarning)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, tempfile.TemporaryDirectory() as scratch:
        tokenizer = task.make_tokenizer()
        model = teach.make_model(tokenizer, seed=seed)
        teaching = progress.add_task("teaching (supervised)", total=teach.STEPS)
        teach.teach(
            model, tokenizer, seed=seed, on_progress=lambda step, _loss: progress.update(teaching, completed=step)
        )
        before = evaluate.evaluate(model, tokenizer, seed=seed)
        training = progress.add_task("GRPO, watched by entrostat", total=steps)
        trainer = grpo.make_trainer(
            model,
            tokenizer,
            steps=steps,
            seed=seed,
            output_dir=scratch,
            on_step=lambda step: progress.update(training, completed=step),
        )
        handle = entrostat.attach(
            trainer,
            url=url,
            directory=data / "spool",
            tags={"demo": "many_answers"},
            answer_pattern=r"\d+\+\d+",
            keep_text=True,
        )
        trainer.train()
        after = evaluate.evaluate(model, tokenizer, seed=seed)
    run_id = handle.run_id
    client = Client(url)
    outcome = _outcome(client, run_id, handle.counters.batches_written)
    outcome["database"] = str((data / "entrostat.duckdb").resolve())
    _show(console, before, after)
    return outcome


def _outcome(client: "Client", run_id: str, batches_sent: int) -> dict[str, Any]:
    """What the database says of the run: the demo reports nothing that was not stored."""

    def one(statement: str) -> dict[str, Any]:
        table, _ = client.sql(statement.replace("$run", f"'{run_id}'"))
        return dict(table.to_pylist()[0])

    ends = one(
        "select count(*) as steps, arg_min(entropy_mean, step) as entropy_first, arg_max(entropy_mean, step) as "
        "entropy_last, arg_min(pass_at_1, step) as pass1_first, arg_max(pass_at_1, step) as pass1_last "
        "from step where run = $run"
    )
    token_rows = one("select count(*) as n from token where run = $run")["n"]
    stored = one("select count(*) as n from batch where run = $run")["n"]
    return {
        "run_id": run_id,
        "steps": ends["steps"],
        "token_rows": token_rows,
        "entropy_first": ends["entropy_first"],
        "entropy_last": ends["entropy_last"],
        "pass1_first": ends["pass1_first"],
        "pass1_last": ends["pass1_last"],
        "batches_sent": batches_sent,
        "batches_stored": stored,
    }


def _show(console: "Console", before: Any, after: Any) -> None:
    from rich.table import Table

    table = Table("sampled afresh, all prompts", "before GRPO", "after", box=None, header_style="bold")
    table.add_row("entropy (nats)", f"{before.entropy:.2f}", f"{after.entropy:.2f}")
    table.add_row("pass@1", f"{before.pass1:.2f}", f"{after.pass1:.2f}")
    table.add_row("distinct right answers", f"{before.distinct_right:.1f}", f"{after.distinct_right:.1f}")
    console.print(table)
