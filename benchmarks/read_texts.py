"""What reading responses costs the background thread: ``python -P benchmarks/read_texts.py``.

A byte-level BPE of 32,000 tokens is trained on the standard library's sources, and cuts of those are the responses:
64 of 1,024 tokens. Timed are ``Reader.read`` alone, its first step (in which each token id's text is looked up) and
later ones, and the whole reduction of the step with and without it, alternating. Copying a tokenizer is timed for a
vocabulary of 150,000. Medians over rounds, with least and most.
"""

import argparse
import itertools
import statistics
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from entrostat.probe.capture import Observed, capture
from entrostat.probe.reduce import Reducer
from entrostat.probe.step import gather
from entrostat.probe.text.decode import texts_of
from entrostat.probe.text.reader import Reader

RESPONSES, TOKENS = 64, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    corpus = [p.read_text(errors="ignore") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    tokenizer = make_tokenizer(corpus)
    micro = micro_batch(tokenizer, corpus)
    thousands = RESPONSES * TOKENS / 1000

    first, later, with_texts, without = [], [], [], []
    for _ in range(rounds):
        reader = Reader(texts_of(tokenizer))
        step = gather([micro])
        first.append(timed(lambda reader=reader, step=step: reader.read(step)) / thousands)
        later.append(timed(lambda reader=reader, step=step: reader.read(step)) / thousands)
        for times, reading in ((with_texts, reader), (without, None)):
            reduce = Reducer(reader=reading, says_absences=False)
            times.append(timed(lambda reduce=reduce: reduce(1, [micro], [], {})) / thousands)
    large = large_tokenizer(150_000)
    copies = [timed(lambda: texts_of(large)) for _ in range(3)]
    print("| what | ms per 1,000 tokens: median (least to most) |\n|---|---|")
    for name, times in (
        ("reading, first step", first),
        ("reading, later steps", later),
        ("a step's reduction with it", with_texts),
        ("a step's reduction without it", without),
    ):
        print(f"| {name} | {statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f}) |")
    print(f"\ncopying a tokenizer of 150,000 tokens, once a run: {statistics.median(copies):.0f} ms")


def timed(work) -> float:  # type: ignore[no-untyped-def]
    """Milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def make_tokenizer(corpus: list[str]) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet, show_progress=False)
    )
    return tok


def large_tokenizer(size: int) -> Tokenizer:
    """Byte-level BPE of ``size`` tokens that mean nothing: letters, then pairs, then threes."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    pairs = [(a, b) for a, b in itertools.product(letters, repeat=2)]
    threes = [(a + b, c) for (a, b), c in itertools.product(pairs[:2000], letters)]
    merges = [*pairs, *threes][: size - len(letters)]
    vocabulary = [*letters, *(a + b for a, b in merges)]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, merges))
    tok.decoder = decoders.ByteLevel()
    return tok


def micro_batch(tokenizer: Tokenizer, corpus: list[str]):  # type: ignore[no-untyped-def]
    ids = tokenizer.encode("".join(corpus)).ids
    chosen = np.random.default_rng(0).integers(0, len(ids) - TOKENS, RESPONSES)
    token_ids = torch.tensor([ids[i : i + TOKENS] for i in chosen])
    generator = torch.Generator().manual_seed(0)
    shape = token_ids.shape
    seen = Observed(
        logp=-torch.rand(shape, generator=generator), entropy=torch.rand(shape, generator=generator),
        mask=torch.ones(shape, dtype=torch.int64), token_ids=token_ids, advantages=torch.randn(RESPONSES),
        prompt_ids=token_ids[:, :256],
    )  # fmt: skip
    return capture(seen, measure=None, measure_all=False, budget=4096, generator=generator)


if __name__ == "__main__":
    main()
