"""What the control page shows, asked of the server at once."""

import json
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from entrostat.dashboard.figures.lines import View
from entrostat.dashboard.figures.timeline import timeline_figure
from entrostat.dashboard.spans import Span, spans_of
from entrostat.dashboard.spans import fetched as events_of
from entrostat.dashboard.standing import Line, evidence, lines
from entrostat.wire.client import Client
from entrostat.wire.messages import DesiredState, Permissions

EFFECT_SIGNALS = ("entropy_mean", "d_collapse", "reward_mean", "pass_at_1", "length_mean", "approx_kl")
EFFECT_WINDOW = 20


@dataclass(frozen=True, slots=True)
class Shown:
    """A run as the page shows it.

    Args:
        detail: the run's page.
        permissions: what the user allowed at ``attach``; None where its probe did not say.
        desired: what is wanted.
        events: of the trainer and of rules, in order.
        spans: what was in force when.
        lines: what is wanted against what is in force.
        evidence: proposal -> the signal values behind it.
        effects: as the server gives them.
    """

    detail: dict[str, Any]
    permissions: Permissions | None
    desired: DesiredState
    events: list[dict[str, Any]]
    spans: list[Span]
    lines: list[Line]
    evidence: dict[str, dict[str, Any]]
    effects: list[dict[str, Any]]

    @property
    def refused(self) -> list[dict[str, Any]]:
        """What the trainer said no to."""
        return [e for e in self.events if e["kind"] == "intervention_refused"]

    @property
    def allowed(self) -> list[str] | None:
        """The interventions that the run allows; None where it did not say."""
        return None if self.permissions is None else self.permissions.allow

    @property
    def digests(self) -> dict[str, str]:
        """Part of the page -> a text that is equal where the part would look the same."""
        last_step = self.detail["last_step"] if any(s.end is None for s in self.spans) else None  # its band grows
        held = [self.desired.model_dump(mode="json"), self.allowed, [str(line) for line in self.lines], self.evidence]
        drawn = [[str(span) for span in self.spans], len(self.refused), last_step]
        return {key: json.dumps(part, default=str) for key, part in
                (("lines", held), ("timeline", drawn), ("effects", self.effects))}  # fmt: skip


def fetched(client: Client, run: str) -> Shown:
    """Everything. Raises EntrostatError."""
    answer = client.control(run)
    detail = client.run(run)
    events = events_of(client, run)
    spans = spans_of(events)
    desired = DesiredState.model_validate(answer["desired"])
    has_effects = any(e["kind"] == "intervention_on" for e in events)
    permissions = answer.get("permissions")
    return Shown(
        detail=detail,
        permissions=None if permissions is None else Permissions.model_validate(permissions),
        desired=desired,
        events=events,
        spans=spans,
        lines=lines(desired, spans, events, detail["last_step"]),
        evidence={p.proposal_id: evidence(p, events) for p in desired.proposals},
        effects=client.effects(run, EFFECT_SIGNALS, EFFECT_WINDOW) if has_effects else [],
    )


def timeline_of(shown: Shown) -> go.Figure:
    """The timeline over all steps of the run."""
    last_step = shown.detail["last_step"]
    steps = None if last_step is None else (0, last_step)
    return timeline_figure(shown.spans, shown.refused, View(revision=shown.detail["run"]), lambda step: step, steps)
