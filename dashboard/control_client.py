"""The server's routes of the person's hand, as the control page asks them."""

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


def _run(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}"
