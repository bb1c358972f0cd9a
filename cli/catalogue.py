"""``signals`` and ``interventions``: what is measured and what can be done, from the tables themselves."""


def signals() -> None:
    """Every signal: unit, meaning, source."""
    from rich.console import Console
    from rich.table import Table

    from entrostat.wire.signals import SIGNALS

    table = Table("signal", "unit", "meaning", "source", box=None, header_style="bold")
    for signal in SIGNALS:
        table.add_row(signal.name, signal.unit, signal.meaning, signal.source)
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
