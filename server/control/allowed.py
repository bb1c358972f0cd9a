"""Whether something may be switched on: the catalogue, what the run allows, what else is on. Pure.

The trainer's controller asks the same questions again; here they are asked so that a person hears the answer at once.
"""

from entrostat.server.http_errors import HttpError
from entrostat.wire.errors import BadParameter, Conflict
from entrostat.wire.interventions import BY_NAME, Intervention, exclusion, named
from entrostat.wire.messages import ActiveIntervention, DesiredState, Mode, Permissions


def checked(wanted: ActiveIntervention, permissions: Permissions, last_step: int | None) -> ActiveIntervention:
    """``wanted`` with its parameters converted, where the run may have it.

    Args:
        last_step: the run's, where it has one.

    Raises:
        HttpError: 403, the run observes only, or does not allow this intervention.
        BadParameter: a parameter is unknown or out of the catalogue's or the user's bounds; ``selection: step`` where
            nothing can be selected; ``until_step`` has passed.
    """
    known = named(wanted.name)
    params = known.checked(dict(wanted.params))
    _check_selection(wanted, known)
    if wanted.until_step is not None and last_step is not None and wanted.until_step <= last_step:
        raise BadParameter(
            f"until_step={wanted.until_step} has passed: the run is at step {last_step}; give a later one, or none"
        )
    _check_allowed(wanted.name, permissions)
    if (reason := known.outside(params, permissions.bounds)) is not None:
        raise BadParameter(reason)
    return wanted.model_copy(update={"params": {name: value for name, value in params.items() if value is not None}})


def check_company(name: str, state: DesiredState) -> None:
    """Raises Conflict where ``name`` cannot be combined with something that is on."""
    for other in (i.name for i in state.interventions if i.name != name):
        reason = exclusion(name, other)
        if reason is not None:
            raise Conflict(f"{name} cannot be combined with {other}, which is on: {reason}. Switch {other} off first")


def _check_selection(wanted: ActiveIntervention, known: Intervention) -> None:
    if wanted.selection != "step":
        return
    if not known.has_threshold:
        able = ", ".join(sorted(n for n, i in BY_NAME.items() if i.has_threshold))
        raise BadParameter(
            f"selection: {known.name} takes no top share of tokens that could be chosen over a whole step; use "
            f"selection=batch ({able} can)"
        )
    if wanted.params.get("threshold") is not None:
        raise BadParameter(
            f"{known.name}.threshold: with selection=step the server sets it from the last whole step; leave it out, "
            "or use selection=batch"
        )


def _check_allowed(name: str, permissions: Permissions) -> None:
    if permissions.mode == Mode.observe:
        raise HttpError(
            403,
            "run_observes",
            "this run observes only: attach with mode='advise' or mode='act', for example "
            f"entrostat.attach(trainer, mode='advise', allow=['{name}'])",
        )
    if name not in permissions.allow:
        allowed = ", ".join(sorted(permissions.allow)) or "nothing"
        raise HttpError(
            403,
            "not_allowed",
            f"this run does not allow {name}: it allows {allowed}; attach with allow=[..., '{name}']",
        )
