"""The ``entrostat`` command: one function a command, each in the module of its subject."""

import sys

import typer

from entrostat.cli import care, catalogue, demo, doctor, experiments, querying, rules, serving, spool

app = typer.Typer(
    name="entrostat",
    help="Watch a policy's entropy while a language model is trained, see which tokens move it, and act on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(serving.up)
app.command("serve")(serving.serve)
app.command("dashboard")(serving.dashboard)
app.command("demo")(demo.demo)
app.command("sql")(querying.sql)
app.add_typer(querying.runs, name="runs")
app.add_typer(rules.rules, name="rules")
app.command("backup")(care.backup)
app.command("restore")(care.restore)
app.command("check")(care.check)
app.command("push")(spool.push)
app.command("signals")(catalogue.signals)
app.command("interventions")(catalogue.interventions)
app.command("doctor")(doctor.doctor)
app.add_typer(experiments.lab, name="lab")
app.add_typer(serving.token, name="token")


def main() -> None:
    """Run a command; what goes wrong on purpose is one line on stderr and exit status 1."""
    from entrostat.wire.errors import EntrostatError

    try:
        app()
    except EntrostatError as error:
        print(f"entrostat: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
