"""The tables of methods and levers. Joining them means joining the laws in ``tests/interventions/``."""

from entrostat.interventions import (
    casp,
    clip_cov,
    clip_higher,
    dlc,
    entropy_advantage,
    entropy_bonus,
    forking_tokens,
    iac,
    kl_cov,
    nsr,
    position_shaping,
    ppl_shaping,
    psr,
    scope,
    selective_kl,
    w_reinforce,
)
from entrostat.interventions.levers import learning_rate, pause, save_checkpoint, stop
from entrostat.interventions.transform import Method


def _unique(*methods: Method) -> tuple[Method, ...]:
    names = [m.name for m in methods]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"declared twice: {sorted(twice)}")
    if unknown := {e for m in methods for e in m.excludes} - set(names):
        raise ValueError(f"excluded by a method but not in the table: {sorted(unknown)}")
    return methods


METHODS = _unique(
    scope.METHOD,
    kl_cov.METHOD,
    clip_cov.METHOD,
    casp.METHOD,
    iac.METHOD,
    ppl_shaping.METHOD,
    position_shaping.METHOD,
    clip_higher.METHOD,
    entropy_bonus.METHOD,
    entropy_advantage.METHOD,
    forking_tokens.METHOD,
    psr.METHOD,
    nsr.METHOD,
    w_reinforce.METHOD,
    selective_kl.METHOD,
)
LEVERS = _unique(learning_rate.METHOD, pause.METHOD, save_checkpoint.METHOD, stop.METHOD)
SAMPLING = _unique(dlc.METHOD)
CATALOGUE = _unique(*METHODS, *SAMPLING, *LEVERS)

BY_NAME = {m.name: m for m in CATALOGUE}
