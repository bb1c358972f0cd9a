"""The task: ``17=`` is answered by any ``a+b`` with a + b = 17. A policy can be right in many ways, and lose them."""

import random
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SUMS = range(10, 60)
"""n of the prompts ``n=``."""
PAD, END = "<pad>", "<eos>"
ALPHABET = [PAD, END, *"0123456789", "+", "="]
WRONG_SHARE = 0.3
"""Share of wrong answers in the teaching set: reinforcement learning must have something left to do."""

_ANSWER = re.compile(r"(0|[1-9]\d?)\+(0|[1-9]\d?)")


def prompts() -> list[str]:
    """Every prompt of the task."""
    return [f"{n}=" for n in SUMS]


def right_answers(n: int) -> list[str]:
    """Every right answer to the prompt ``n=``, numbers of at most two digits without leading zeros: n + 1 of them."""
    return [f"{a}+{n - a}" for a in range(n + 1)]


def is_right(prompt: str, completion: str) -> bool:
    """Whether ``completion`` is a sum of two numbers that gives the prompt's."""
    found = _ANSWER.fullmatch(completion.strip())
    return found is not None and int(found[1]) + int(found[2]) == int(prompt.rstrip("="))


def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """TRL's reward function: 1 for a right answer, 0 for any other."""
    return [float(is_right(p, c)) for p, c in zip(prompts, completions, strict=True)]


def teaching_pair(draw: random.Random, wrong_share: float = WRONG_SHARE) -> tuple[str, str]:
    """A prompt and an answer, of any other sum with probability ``wrong_share``; uniform over the ways to say it."""
    n = draw.choice(SUMS)
    total = n
    if draw.random() < wrong_share:
        total = draw.choice([m for m in SUMS if m != n])
    a = draw.randint(0, total)
    return f"{n}=", f"{a}+{total - a}"


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """One token a character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(ALPHABET)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
