"""``signals`` and ``interventions``: what is measured and what can be done, from the tables themselves."""

from typing import Annotated, Literal

import typer

Trainer = Annotated[
    Literal["trl", "verl"] | None,
    typer.Option(help="What this trainer's own metrics are in our vocabulary, key by key."),
]


def signals(trainer: Trainer = None) -> None:
    """Every signal: unit, meaning, source; or what a trainer's own metrics are in these words."""
    if trainer is not None:
        _trainer_metrics(trainer)
        return
    from rich.console import Console
    from rich.table import Table

    from entrostat.wire.signals import SIGNALS

    table = Table("signal", "unit", "meaning", "source", box=None, header_style="bold")
    for signal in SIGNALS:
        table.add_row(signal.name, signal.unit, signal.meaning, signal.source)
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
    """Every intervention: what it acts on, its parameters, its source."""
    from rich.console import Console
    from rich.table import Table

    from entrostat.interventions.methods import METHODS

    table = Table("name", "acts on", "parameters", "source", box=None, header_style="bold")
    for method in METHODS:
        fields = method.params.model_fields
        table.add_row(
            method.name,
            str(method.phase.value),
            ", ".join(f"{name}={field.default}" for name, field in fields.items()),
            method.source,
        )
    Console(markup=False, highlight=False).print(table)
