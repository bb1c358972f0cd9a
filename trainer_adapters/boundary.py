"""The moment between two steps: every rank hears the same, and a pause is waited out."""

import time
from typing import Any

import torch.distributed

from entrostat.interventions.levers.pause import PauseParams
from entrostat.trainer_adapters.controller import Controller, Intent
from entrostat.trainer_adapters.session import Session

PAUSE_POLL_S = 1.0
"""How often a paused trainer looks whether it may go on."""


def switch(session: Session, controller: Controller, step: int) -> None:
    """Put up what is wanted for the step that begins; with several ranks, call it on all of them.

    Args:
        session: hears the server.
        controller: decides.
        step: the step's number.
    """
    began = time.monotonic()
    while True:
        intent = _of_first_rank(session, waited_s=time.monotonic() - began)
        controller.at_boundary(step, intent)
        pause = controller.board.active.get("pause")
        if pause is None:
            return
        longest_s = PauseParams(**pause).at_most_s
        if intent.waited_s >= longest_s:
            controller.broken["pause"] = f"it lasted {longest_s:g} s, the longest that was allowed"
        else:
            time.sleep(PAUSE_POLL_S)


def _of_first_rank(session: Session, waited_s: float) -> Intent:
    shared: list[Any] = [session.intent(waited_s)]
    if session.place.world_size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(shared, src=0)
    intent: Intent = shared[0]
    return intent
