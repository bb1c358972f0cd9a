"""What may be done to a run: of what the trainer can have, what the user allows."""

import logging
from collections.abc import Mapping

from entrostat.trainer_adapters.session import Options
from entrostat.wire.errors import AttachError
from entrostat.wire.interventions import INTERVENTIONS
from entrostat.wire.messages import Mode, Permissions

log = logging.getLogger("entrostat")


def permissions_of(options: Options, refusals: Mapping[str, str]) -> Permissions:
    """What the user allows, of what the trainer can have.

    Args:
        options: the user's choices.
        refusals: what the trainer cannot have, and why.

    Raises:
        AttachError: the user allows something that the trainer cannot have; with the reason.
    """
    for name in sorted(options.allow or ()):
        if name in refusals:
            raise AttachError(f"allow={name!r}: {refusals[name]}")
    if options.allow and options.mode == Mode.observe:
        log.warning("allow=%s has no effect in mode observe: give mode='advise' or mode='act'", sorted(options.allow))
    possible = [i.name for i in INTERVENTIONS if i.name not in refusals]
    return Permissions(
        mode=options.mode,
        allow=possible if options.allow is None else sorted(options.allow),
        bounds=options.bounds,
        grace_s=options.grace_s,
        on_lost=options.on_lost,
    )
