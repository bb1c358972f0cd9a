r"""What is wrong with a response's form, and the answer it gives (Exchange App. B).

The paper counts ``\boxed{``, looks for Chinese characters, and has a large language model judge what is irrelevant or
repetitive. Decisions of ours:

- A box must be closed to be an answer, and say something; every opening counts, closed or not.
- Japanese and Korean letters count as Chinese ones do, and none of them where the prompt has one itself.
- Repetition is counted, not judged: see ``is_repetitive``. What is garbled without repeating is not found.
"""

import re
import unicodedata
from collections.abc import Iterable

from entrostat.probe.hashes import hash63

REPEATED_WORDS = 4
"""Words of a run that comes again."""
STRETCH = 64
"""Words in a row of which half must belong to such runs."""

_BRACE = re.compile(r"(?P<box>\\boxed\s*\{)|\\[{}]|[{}]")  # an escaped brace is part of the text
_CJK = re.compile(
    "["
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d\U0001b000-\U0001b16f"  # kana
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa1-\uffdc"  # Hangul
    "]"
)
# Scripts that put no space between words: Thai to Tibetan, Burmese, Khmer, kana, Han. At most 16 characters: a thousand
# letters or signs in a row are a loop too.
_UNSPACED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]{{1,16}}|[^\w\s]{{1,16}}")

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_UNSEEN = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:! ]|\s+")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


class AnswerFinder:
    r"""Finds the answers in a response's text.

    Args:
        pattern: a regular expression, with ``.`` matching line ends, whose matches are the answers: their group
            ``answer``, else their first group, else all of them. None: the contents of ``\boxed{...}``, braces
            balanced.

    Raises:
        ValueError: the pattern is not a regular expression.
    """

    def __init__(self, pattern: str | None = None) -> None:
        try:
            self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ValueError(f"answer_pattern={pattern!r} is not a regular expression: {error}") from error

    def answers(self, text: str) -> list[str | None]:
        """Every answer in the text, in order, normalised; None for one that is not closed or says nothing."""
        found = _boxes(text) if self._pattern is None else self._matches(self._pattern, text)
        return [(normalised(answer) or None) if answer is not None else None for answer in found]

    @staticmethod
    def _matches(pattern: re.Pattern[str], text: str) -> Iterable[str | None]:
        group: str | int = "answer" if "answer" in pattern.groupindex else min(pattern.groups, 1)
        return (match[group] for match in pattern.finditer(text))


def _boxes(text: str) -> list[str | None]:
    """What stands in each box, by opening; None for one that is never closed. One pass, however many there are."""
    found: list[str | None] = []
    opened: list[tuple[int, int] | None] = []  # braces not closed yet: which box and where its content begins
    for brace in _BRACE.finditer(text):
        if brace["box"]:
            opened.append((len(found), brace.end()))
            found.append(None)
        elif brace[0] == "{":
            opened.append(None)
        elif brace[0] == "}" and opened and (box := opened.pop()) is not None:
            found[box[0]] = text[box[1] : brace.start()]
    return found


def is_violation(answers: list[str | None]) -> bool:
    """Not exactly one answer."""
    return len(answers) != 1 or answers[0] is None


def answer_hash(answers: list[str | None]) -> int | None:
    """63 bits of the last answer, which is the one that counts; None where there is none."""
    said = [answer for answer in answers if answer is not None]
    return hash63(said[-1].encode("utf-8", "surrogatepass")) if said else None


def normalised(answer: str) -> str:
    r"""An answer without what does not change its meaning, so that equal ones are equal texts.

    Spaces, ``\left`` and ``\right``, the ``$`` around it, the full stop behind it; ``\text{A}`` is A, ``\dfrac`` is
    ``\frac``; Unicode NFC. Numbers are not computed: 1/2 and 0.5 stay two answers.
    """
    text = unicodedata.normalize("NFC", answer)
    text = _FRACTION.sub(r"\\frac", _WRAPPED.sub(r"\1", text))
    return _UNSEEN.sub("", text).rstrip(".").strip("$").rstrip(".")


def has_cjk(text: str) -> bool:
    """Whether there is a Chinese, Japanese or Korean letter in it; their punctuation is not one."""
    return _CJK.search(text) is not None


def words_of(text: str) -> list[str]:
    """The words of the text; signs in a row are one, and so is each letter of a script without spaces."""
    return _WORD.findall(text)


def is_repetitive(text: str) -> bool:
    """Whether, of some 64 words in a row, at least 32 end a run of 4 words that was there twice before.

    **Decision**: the paper gives no measure. The third time, not the second, for a response may well state its result
    twice or check a calculation by doing it again; half of a stretch, not a share of the response, for a long one may
    begin well and end in a loop. Under 32 words nothing can be repetitive.
    """
    words = words_of(text)
    num_runs = max(len(words) - REPEATED_WORDS + 1, 0)
    if 2 * (num_runs - len(set(_runs(words)))) < STRETCH:  # most responses: too few runs come twice
        return False
    again = _comes_again(words)
    in_stretch = 0
    for i, is_again in enumerate(again):
        in_stretch += is_again - (again[i - STRETCH] if i >= STRETCH else 0)
        if 2 * in_stretch >= STRETCH:
            return True
    return False


def _runs(words: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(REPEATED_WORDS)), strict=False)


def _comes_again(words: list[str]) -> list[bool]:
    """For each run of words: whether it was there twice before."""
    seen: dict[tuple[str, ...], int] = {}
    again = []
    for run in _runs(words):
        times = seen[run] = seen.get(run, 0) + 1
        again.append(times > 2)
    return again
