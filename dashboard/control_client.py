"""The server's routes that change what is on in a run, and those of rules, as this dashboard asks them."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from entrostat.wire.client import Client


def control(client: Client, run: str) -> dict[str, Any]:
    """What may be done to a run, what is wanted in it, and whether its trainer is heard."""
    return dict(client.get(f"{_run(run)}/control"))


def effects(client: Client, run: str, signals: Sequence[str], window: int) -> list[dict[str, Any]]:
    """Signals before, during and after each time that something was in force."""
    return list(client.get(f"{_run(run)}/effects", signals=",".join(signals), window=window)["effects"])


def switch_on(client: Client, run: str, name: str, wanted: Mapping[str, Any]) -> None:
    """Want an intervention on, or on with other parameters."""
    client.send("PUT", f"{_run(run)}/interventions/{quote(name, safe='')}", dict(wanted))


def switch_off(client: Client, run: str, name: str, because: str, person: str) -> None:
    """Want it off."""
    said = {"because": because, "person": person}
    client.send("DELETE", f"{_run(run)}/interventions/{quote(name, safe='')}", said)


def decide(
    client: Client, run: str, proposal: str, approve: bool, because: str, person: str, params: dict[str, Any] | None
) -> None:
    """Approve what a rule proposes, with other parameters where ``params`` is given, or dismiss it."""
    said: dict[str, Any] = {"approve": approve, "person": person, "because": because}
    said |= {} if params is None else {"params": params}
    client.send("POST", f"{_run(run)}/proposals/{quote(proposal, safe='')}", said)


def stop_all(client: Client, run: str, because: str, person: str) -> None:
    """The kill switch: everything off from the next step on, and no rule acts."""
    client.send("POST", f"{_run(run)}/stop-all", {"because": because, "person": person})


def arm(client: Client, run: str, because: str, person: str) -> None:
    """Things may be switched on again."""
    client.send("POST", f"{_run(run)}/arm", {"because": because, "person": person})


def rules(client: Client) -> list[dict[str, Any]]:
    """The rules that the server holds."""
    return list(client.get("/v1/rules")["rules"])


def put_rule(client: Client, name: str, rule: Mapping[str, Any]) -> None:
    """Save a rule under its name, in the place of an earlier one."""
    client.send("PUT", f"/v1/rules/{quote(name, safe='')}", dict(rule))


def delete_rule(client: Client, name: str) -> None:
    """Remove a rule."""
    client.send("DELETE", f"/v1/rules/{quote(name, safe='')}")


def check_rules(client: Client, text: str) -> dict[str, Any]:
    """The rules in ``text``, or what is wrong with it and where."""
    return dict(client.send("POST", "/v1/rules/check", {"text": text}))


def replay_rules(client: Client, run: str, text: str) -> list[dict[str, Any]]:
    """What the rules in ``text`` would have done in a run so far."""
    answer = client.send("POST", f"{_run(run)}/rules/replay", {"text": text})
    return list(answer["firings"] if isinstance(answer, dict) else answer)


def _run(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}"
