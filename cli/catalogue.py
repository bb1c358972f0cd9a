"""``signals`` and ``interventions``: what is measured and what can be done, from the tables themselves."""

from typing import Annotated, Literal

import typer

Trainer = Annotated[
    Literal["trl", "verl"] | None,
    typer.Option(help="What this trainer's own metrics are in our vocabulary, key by key."),
]


def signals(trainer: Trainer = None) -> None:
    """Every signal by family: unit, meaning, needs, source; or a trainer's own metrics in these words."""
    if trainer is not None:
        _trainer_metrics(trainer)
        return
    from rich.console import Console
    from rich.table import Table

    from entrostat.wire.signals import FAMILIES, FINDINGS, HISTOGRAMS

    table = Table(box=None, header_style="bold")
    for title in ("signal", "unit"):
        table.add_column(title, no_wrap=True)
    for title in ("meaning", "source"):
        table.add_column(title, overflow="fold")
    groups = {**FAMILIES, "histograms": tuple(HISTOGRAMS.values()), "statements about a run": FINDINGS}
    for family, declared in groups.items():
        table.add_row(f"{family}:", style="bold")
        for s in declared:
            needs = f" Needs {', '.join(s.needs)}." if s.needs else ""
            table.add_row(f"  {s.name}", s.unit, s.meaning + needs, s.source)
    Console(markup=False, highlight=False).print(table)


def _trainer_metrics(trainer: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from entrostat.wire.metric_names import DIALECTS

    dialect = DIALECTS[trainer]
    table = Table(box=None, header_style="bold")
    table.add_column(dialect.release, no_wrap=True)
    table.add_column("signal", no_wrap=True)
    table.add_column("the same?")
    for entry in dialect.entries:
        table.add_row(entry.key, entry.signal or "-", entry.verdict)
    Console(markup=False, highlight=False).print(table)


def interventions() -> None:
    """Every intervention: what it acts on, its parameters with their bounds, what it needs, its source."""
    from rich.console import Console
    from rich.table import Table

    from entrostat.wire.interventions import INTERVENTIONS

    table = Table(box=None, header_style="bold")
    table.add_column("name, acts on", no_wrap=True)
    table.add_column("parameter", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("allowed", max_width=28)
    table.add_column("meaning", overflow="fold")
    for i in INTERVENTIONS:
        needs = f" Needs {', '.join(i.needs)}." if i.needs else ""
        without = f" Not with {', '.join(i.excludes)}." if i.excludes else ""
        table.add_row(
            f"{i.name}, {i.acts_on}", "", "", "", f"{i.meaning}{needs}{without} Source: {i.source}", style="bold"
        )
        for p in i.params:
            table.add_row("", p.name, "-" if p.default is None else str(p.default), p.allowed, p.meaning)
    Console(markup=False, highlight=False).print(table)
