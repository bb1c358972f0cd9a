r"""Kinds of tokens: formal, logical, metacognitive, semantic (Exchange Sec. 3, App. C).

A token is judged by its own text alone, so that a table from token id to kind is all it takes. The words are in
``words.py``, English only: those of other languages count as semantic.

Decisions:

- Semantic is everything else, so that the four shares add up to 1: punctuation, spaces, special tokens too.
- A word must begin like one, with a space before it or a capital letter: "so" within "also" is a piece of a word, and
  pieces of words are semantic. A listed word that the vocabulary splits is missed.
- Formal: digits, mathematical signs, brackets, Greek letters, LaTeX commands and dollar signs, with punctuation and
  single Latin letters among them ("3.", "(x"). A Latin letter alone is a variable, but for a, A and I, which are words
  far more often. "**" and longer rows of asterisks are Markdown.
- A word of two kinds has the one it has more often in a solution: "since" is logical, "check" metacognitive.
"""

import re
import unicodedata

import numpy as np

from entrostat.probe.step import Ints, Kinds
from entrostat.probe.text.decode import Texts
from entrostat.probe.text.words import COMMANDS, LOGICAL_WORDS, METACOGNITIVE_WORDS
from entrostat.wire.declared.text import CATEGORIES

FORMAL, LOGICAL, METACOGNITIVE, SEMANTIC = range(len(CATEGORIES))
_UNKNOWN = -1

_SIGNS = frozenset("-*/^_%\\()[]{}&$°′″‰")
_PUNCTUATION = frozenset(".,:;!?'")
_MARKDOWN = re.compile(r"\*{2,}[.,:;!?]*")
_COMMAND = re.compile(r"[^\w\s]*\\[A-Za-z]+[^\w\s]*")
_WORD = re.compile(r"\s*[^\w\s]*([A-Za-z]+)[^\w\s]*\s*")
_VARIABLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")


class Categories:
    """Kinds of token ids, from a table that grows by the ids it is asked for.

    Args:
        texts: gives a token's text.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._table: Kinds = np.full(0, _UNKNOWN, np.int8)

    def of(self, token_ids: Ints) -> Kinds:
        """[N] ids, 0 or more -> [N] kinds."""
        if token_ids.size == 0:
            return np.zeros(0, np.int8)
        missing = int(token_ids.max()) + 1 - self._table.size
        if missing > 0:
            self._table = np.concatenate([self._table, np.full(missing, _UNKNOWN, np.int8)])
        found = self._table[token_ids]
        if (found == _UNKNOWN).any():
            for token_id in np.unique(token_ids[found == _UNKNOWN]).tolist():
                self._table[token_id] = category_of(self._texts.token(token_id))
            found = self._table[token_ids]
        return found


def category_of(text: str) -> int:
    """Kind of one token's text, with the space before it where it has one."""
    if _is_formal(text):
        return FORMAL
    word = _WORD.fullmatch(text)
    if word is None or not _begins_a_word(text, word[1]):
        return SEMANTIC
    lower = word[1].lower()
    if lower in METACOGNITIVE_WORDS:
        return METACOGNITIVE
    return LOGICAL if lower in LOGICAL_WORDS else SEMANTIC


def _begins_a_word(text: str, word: str) -> bool:
    return text[0].isspace() or word[0].isupper()


def _is_formal(text: str) -> bool:
    bare = text.strip()
    if _MARKDOWN.fullmatch(bare):
        return False
    if _COMMAND.fullmatch(bare) or text in COMMANDS:  # without its backslash a command has no space before it either
        return True
    if len(bare) == 1 and bare.isascii() and bare.isalpha():
        return bare not in "aAI"
    others = _VARIABLE.sub("", bare)
    is_sign = [_is_sign(c) for c in others]
    return any(is_sign) and all(sign or c in _PUNCTUATION for sign, c in zip(is_sign, others, strict=True))


def _is_sign(char: str) -> bool:
    # Sm: mathematical signs; N*: digits of every script, fractions and superscripts, not Chinese number words.
    kind = unicodedata.category(char)
    return char in _SIGNS or kind == "Sm" or kind[0] == "N" or "\u0370" <= char <= "\u03ff" or _is_math_letter(char)


def _is_math_letter(char: str) -> bool:
    return "\U0001d400" <= char <= "\U0001d7ff" or "\u2100" <= char <= "\u214f"
