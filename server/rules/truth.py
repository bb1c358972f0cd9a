"""Three values: True, False, and None for unknown (Kleene 1952). A rule acts on True alone."""

from collections.abc import Sequence

Truth = bool | None


def all_of(values: Sequence[Truth]) -> Truth:
    """True where all are; False where one is, whatever is unknown."""
    if False in values:
        return False
    return None if None in values else True


def any_of(values: Sequence[Truth]) -> Truth:
    """True where one is, whatever is unknown; False where all are."""
    if True in values:
        return True
    return None if None in values else False


def negated(value: Truth) -> Truth:
    """Unknown stays unknown."""
    return None if value is None else not value


Streak = tuple[int, int | None]
"""(evaluations true in a row, evaluations since the last false one; None where there was none)."""


def lasted(value: Truth, streak: Streak, num: int) -> tuple[Truth, Streak]:
    """Whether a statement was true at each of the last ``num`` evaluations, ``value`` being the newest.

    False where it was false at one of them, unknown where none was false but one is not known or there were not so
    many yet.

    Returns:
        The answer, and the streak with this evaluation in it.
    """
    trues, since_false = streak
    trues = trues + 1 if value is True else 0
    since_false = 0 if value is False else None if since_false is None else since_false + 1
    if trues >= num:
        return True, (trues, since_false)
    is_false = since_false is not None and since_false < num
    return (False if is_false else None), (trues, since_false)
