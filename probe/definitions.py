"""What the signals are computed from besides the tokens: a generation's rewards, and the settings of definitions."""

from dataclasses import dataclass

from entrostat.probe.step import Floats, Ints

_DRAWS = 8


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rewards of one generation over all ranks, in groups: [R] rewards (NaN = not scored), [R] prompt numbers."""

    reward: Floats
    prompt: Ints


@dataclass(frozen=True, slots=True)
class Settings:
    """What a signal's definition depends on; kept with the run.

    Args:
        correct_at: a response is right when its reward is at least this.
        group_size: responses per prompt, where the trainer says; groups with fewer present are left out.
        eps_low: lower clip range of the ratio.
        eps_high: upper clip range of the ratio.
        num_ranks: of the session; what cannot be summed over ranks is sent in a form that can.
        without: families of ``wire/signals.py`` that are switched off.
    """

    correct_at: float = 1.0
    group_size: int | None = None
    eps_low: float = 0.2
    eps_high: float = 0.2
    num_ranks: int = 1
    without: frozenset[str] = frozenset()

    @property
    def draws(self) -> int:
        """K of ``expected_distinct``."""
        return self.group_size or _DRAWS
