"""``rules``: list, add, remove, check a file, replay on a recorded run, the built-in pack."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from entrostat.cli.options import DEFAULT_URL, Token, Url, client
from entrostat.cli.output import Format, write

rules = typer.Typer(help="What is done when a signal goes where it should not.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Rules as YAML or JSON; '-' reads standard input.")]
Form = Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")]


@rules.command("list")
def list_rules(url: Url = DEFAULT_URL, token: Token = None, form: Form = Format.table) -> None:
    """The rules that a server holds."""
    held = client(url, token).rules()
    if not held:
        print("entrostat: no rules yet: entrostat rules pack --add", file=sys.stderr)
        return
    rows = [
        {
            "rule": one["name"],
            "version": one["version"],
            "mode": one["rule"].get("mode", "advise"),
            "does": _does(one["rule"]),
            "updated": one["updated"],
        }
        for one in held
    ]
    _write(rows, form)


def _does(rule: dict[str, Any]) -> str:
    if "hold" in rule:
        return f"holds {rule['hold']['signal']} by {rule['with']['intervention']}.{rule['with']['param']}"
    do = rule.get("do")
    if not do:
        return "tells"
    params = " ".join(f"{name}={value}" for name, value in do.get("params", {}).items())
    return f"{do['intervention']} {params}".strip()


@rules.command("add")
def add(file: File, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Put the rules of a file on a server; all of them, or none where one is wrong."""
    _add(_read(file), url, token)


def _add(text: str, url: str, token: str | None) -> None:
    server = client(url, token)
    checked = server.check_rules(text)
    _stop_at(checked["problems"])
    for rule in checked["rules"]:
        held = server.put_rule(rule)
        print(f"{held['name']}: version {held['version']}")


@rules.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Of rules.")], url: Url = DEFAULT_URL, token: Token = None
) -> None:
    """Remove rules; what they have on goes off, what they proposed is withdrawn."""
    server = client(url, token)
    for name in names:
        server.delete_rule(name)


@rules.command("check")
def check(
    file: File,
    url: Annotated[
        str | None, typer.Option(envvar="ENTROSTAT_URL", help="Check its SQL too, on this server.", show_default=False)
    ] = None,
    token: Token = None,
) -> None:
    """Read rules and name every mistake by its rule, field and line; nothing is kept. Needs no server."""
    text = _read(file)
    if url is not None:
        checked = client(url, token).check_rules(text)
        names, problems = [rule["name"] for rule in checked["rules"]], checked["problems"]
    else:
        from entrostat.wire.rules.text import parse

        parsed = parse(text)
        names = [rule.name for rule in parsed.rules]
        problems = [{"where": p.where, "message": p.message} for p in parsed.problems]
    _stop_at(problems)
    print(f"{len(names)} rules, no mistakes: {', '.join(names)}")


@rules.command("replay")
def replay(
    run: Annotated[str, typer.Argument(help="A recorded run.")],
    file: Annotated[
        Path | None, typer.Argument(help="Rules as YAML or JSON; without it those that the server holds.")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    form: Form = Format.table,
) -> None:
    """Where would rules have fired in a run? The engine's own code on every recorded step; nothing is changed."""
    told = client(url, token).replay_rules(run, None if file is None else _read(file))
    if not told:
        print(f"entrostat: in {run} no rule would have done anything", file=sys.stderr)
        return
    _write([{key: one[key] for key in ("step", "rule", "kind", "message")} for one in told], form)


@rules.command("pack")
def pack(
    add: Annotated[bool, typer.Option("--add", help="Put them on the server.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Print the built-in rules for the known failures, as YAML; they only propose."""
    from entrostat.wire.rules.pack import pack_text

    if add:
        _add(pack_text(), url, token)
    else:
        print(pack_text(), end="")


def _read(file: Path) -> str:
    from entrostat.wire.errors import NotFound

    if str(file) == "-":
        return sys.stdin.read()
    if not file.is_file():
        raise NotFound(f"no file {file}")
    return file.read_text(encoding="utf-8")


def _stop_at(problems: list[dict[str, str]]) -> None:
    if problems:
        from entrostat.wire.errors import BadParameter

        raise BadParameter(
            "\n  ".join(["the rules have mistakes", *(f"{p['where']}: {p['message']}" for p in problems)])
        )


def _write(rows: list[dict[str, Any]], form: Format) -> None:
    import pyarrow as pa

    write(pa.Table.from_pylist(rows), form, None)
