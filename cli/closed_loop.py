"""``lab closed-loop``: starts a server, lets the arms run against it, prints the table."""

import json
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

from entrostat.cli.demo import free_port
from entrostat.cli.processes import Processes
from entrostat.cli.serving import server_command
from entrostat.lab.many_answers import closed_loop
from entrostat.lab.many_answers.arms import PLAIN, THERMOSTAT, evaluated
from entrostat.wire.client import Client
from entrostat.wire.errors import EntrostatError


def run(seeds: int, steps: int, names: str | None, data: Path, picture: Path | None, as_json: bool) -> None:
    """See ``entrostat lab closed-loop --help``.

    Raises:
        EntrostatError: an unknown arm, or a picture is wanted and plotly is not there.
    """
    if picture is not None:
        from entrostat.lab.picture import need_plotly

        need_plotly()
    known = {arm.name: arm for arm in closed_loop.ARMS}
    wanted = list(known) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        raise EntrostatError(f"--arms: no arm {unknown[0]!r}: there are {', '.join(known)}")
    warnings.filterwarnings("ignore", category=FutureWarning)
    console, port = Console(stderr=True, highlight=False), free_port(0)

    def on_row(row: closed_loop.Row) -> None:
        said = {"arm": row.arm, "seed": row.seed, "run_id": row.run_id, **evaluated(row.found)}
        if as_json:
            print(json.dumps(said), flush=True)
        else:
            console.print(f"seed {row.seed}  {row.arm:<22} pass@1 {row.found.pass1:.2f}")

    with Processes() as processes:
        processes.start("server", server_command(data, "127.0.0.1", port), quiet=True)
        processes.wait_for(f"http://127.0.0.1:{port}/healthz", "server")
        rows = closed_loop.run(
            Client(f"http://127.0.0.1:{port}"),
            seeds=range(seeds),
            steps=steps,
            arms=[known[name] for name in wanted],
            directory=data / "spool",
            on_row=on_row,
        )
    if not as_json:
        Console(width=140).print(_table(rows))
        _say_verdict(rows)
    if picture is not None:
        from entrostat.lab import picture as pictures

        pictures.write([closed_loop.picture(rows)], picture)


def _table(rows: list[closed_loop.Row]) -> Table:
    table = Table("arm", "seeds", "pass@1", "pass@8", "distinct right of 32", "entropy (nats)")
    for mean in closed_loop.means(rows):
        cells = [f"{m:.2f} ± {se:.2f}" for m, se in (mean.pass1, mean.pass8, mean.distinct, mean.entropy)]
        table.add_row(mean.arm, str(mean.num_seeds), *cells)
    return table


def _say_verdict(rows: list[closed_loop.Row]) -> None:
    found = {mean.arm: mean for mean in closed_loop.means(rows)}
    if THERMOSTAT.name not in found:
        return
    names = [PLAIN.name, *(arm.name for arm in closed_loop.CURVE)]
    points = [(found[n].pass1[0], found[n].distinct[0]) for n in names if n in found]
    held = found[THERMOSTAT.name]
    there = closed_loop.curve_at(held.pass1[0], points)
    said = "lies beyond the curve's ends" if there is None else f"is {there:.2f} on the curve"
    print(
        f"at the thermostat's pass@1 of {held.pass1[0]:.2f}: {held.distinct[0]:.2f} distinct right answers; a constant"
    )
    print(f"entropy bonus {said}")
