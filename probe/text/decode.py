"""Token ids to text, with nothing shared with the trainer's tokenizer."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

Decode = Callable[[list[int]], str]


class Texts:
    """Text of responses and of single tokens. Belongs to one thread; holds the text of every token id it has seen.

    Args:
        response: token ids -> their text, special tokens left out.
        raw: the same with special tokens in it; for single tokens.
    """

    def __init__(self, response: Decode, raw: Decode) -> None:
        self._response, self._raw = response, raw
        self._tokens: dict[int, str] = {}

    def response(self, ids: Sequence[int]) -> str:
        """The text of a whole response, as TRL hands it to reward functions: special tokens left out."""
        return self._response(list(ids))

    def token(self, token_id: int) -> str:
        """A token as it reads within a text: with its leading space, U+FFFD for bytes that are no character alone."""
        text = self._tokens.get(token_id)
        if text is None:
            text = self._tokens[token_id] = self._within(token_id)
        return text

    def _within(self, token_id: int) -> str:
        # What a second one adds: a decoder drops the space before the first word, and marks of word pieces ('▁', '##',
        # 'Ġ') mean what they mean only behind something.
        once, twice = self._raw([token_id]), self._raw([token_id, token_id])
        # Bytes of one token and the next may join to a character, and then the first part is another one.
        return twice[len(once) :] if twice.startswith(once) else once


def texts_of(tokenizer: Any) -> Texts:
    """``Texts`` of a tokenizer, copied: 0.3 s for a vocabulary of 150,000 (``benchmarks/read_texts.py``), once a run.

    A fast tokenizer that two threads use raises "Already borrowed" in one of them, which could be the trainer's. Call
    this on the thread that uses the tokenizer: copying reads it.

    Args:
        tokenizer: of transformers (fast or slow), a ``tokenizers.Tokenizer``, anything with ``decode(ids) -> str``
            that can be copied, or a function ``ids -> str``, which is used as it is, on another thread.

    Raises:
        TypeError: it is none of these.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str") and hasattr(type(backend), "from_str"):
        own = type(backend).from_str(backend.to_str())
        return Texts(own.decode, lambda ids: str(own.decode(ids, skip_special_tokens=False)))
    if hasattr(tokenizer, "decode"):
        return _of_decoder(copy.deepcopy(tokenizer).decode)
    if callable(tokenizer):
        return Texts(tokenizer, tokenizer)
    raise TypeError(f"tokenizer is a {type(tokenizer).__name__}: give a tokenizer or a function from token ids to text")


def _of_decoder(decode: Any) -> Texts:
    if "skip_special_tokens" not in inspect.signature(decode).parameters:
        return Texts(decode, decode)
    return Texts(lambda ids: str(decode(ids, skip_special_tokens=True)), decode)
