"""The table of methods. Joining it means joining the laws in ``tests/interventions/``."""

from entrostat.interventions import clip_higher, entropy_bonus
from entrostat.interventions.transform import Method


def _unique(*methods: Method) -> tuple[Method, ...]:
    names = [m.name for m in methods]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"declared twice: {sorted(twice)}")
    if unknown := {e for m in methods for e in m.excludes} - set(names):
        raise ValueError(f"excluded by a method but not in the table: {sorted(unknown)}")
    return methods


METHODS = _unique(clip_higher.METHOD, entropy_bonus.METHOD)

BY_NAME = {m.name: m for m in METHODS}
