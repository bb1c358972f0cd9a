"""The moment between two steps: every rank hears the same, failures are shared, and a pause is waited out."""

import time
from typing import Any

import torch.distributed

from entrostat.interventions.levers.pause import PauseParams
from entrostat.trainer_adapters.board import Board
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
        intent = _heard(session, controller.board, waited_s=time.monotonic() - began)
        controller.at_boundary(step, intent)
        pause = controller.board.active.get("pause")
        if pause is None:
            return
        longest_s = PauseParams(**pause).at_most_s
        if intent.waited_s >= longest_s:
            controller.broken["pause"] = f"it lasted {longest_s:g} s, the longest that was allowed"
        else:
            time.sleep(PAUSE_POLL_S)


def _heard(session: Session, board: Board, waited_s: float) -> Intent:
    """What rank 0 has heard; and what raised on any rank in the last step comes down on this one too.

    Else the ranks' gradients, which are averaged, would be of two losses.
    """
    mine = session.intent(waited_s) if session.place.rank == 0 else None
    everyone: list[Any] = [(mine, board.failure)]
    if session.place.world_size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        everyone = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, (mine, board.failure))
    for rank, (_, failure) in enumerate(everyone):
        if failure is not None and board.failure is None:
            board.fail(f"on rank {rank}: {failure}")
    # A process that is not rank 0 and has no group to ask listens to its own stream.
    intent: Intent = next((heard for heard, _ in everyone if heard is not None), None) or session.intent(waited_s)
    return intent
