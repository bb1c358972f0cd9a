"""A top share of tokens taken in each micro-batch, over the whole step, and by the server's threshold: how far apart.

Rollouts are real: the task of ``lab/many_answers``, taught and then trained with GRPO. Before the training and around
two of its steps the policy is sampled once more, many groups of eight, as one large step, which is cut into micro-
batches. What is chosen is what ``entrostat.interventions`` chooses; thresholds come from the histograms of the sample
before the step (as in a run, where they are one step old) and of the same sample.

    python -P benchmarks/selection.py [--groups 2048] [--steps 60] [--seed 0]
"""

import argparse
import os
import tempfile
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

from entrostat.interventions.selection import scope_score, token_covariance, top_share
from entrostat.lab.many_answers import grpo, task, teach
from entrostat.storage.thresholds import threshold
from entrostat.wire.bins import histogram_of

GROUP = 8
SHARES = {"scope": 0.05, "kl_cov": 0.002, "clip_cov": 0.0002, "forking_tokens": 0.2}
"""The methods' defaults: q, k, r, share."""
BAND = (1.0, 5.0)
"""Of Clip-Cov: w_low, w_high."""
MICRO_BATCHES = (8, 32, 128, 1024)
"""Responses in a micro-batch."""


@dataclass(frozen=True, slots=True)
class Sample:
    """R responses of at most T tokens: ``logp``, ``entropy``, ``advantage`` [R, T] float, ``mask`` [R, T] bool."""

    logp: Tensor
    entropy: Tensor
    advantage: Tensor
    mask: Tensor

    def part(self, first: int, size: int) -> "Sample":
        """Some of its responses."""
        rows = slice(first, first + size)
        return Sample(self.logp[rows], self.entropy[rows], self.advantage[rows], self.mask[rows])

    def score(self, method: str) -> Tensor:
        """What ``method`` ranks tokens by [R, T], centred over these responses where it is centred."""
        if method == "scope":
            return scope_score(self.logp, self.advantage)
        if method == "forking_tokens":
            return self.entropy
        return token_covariance(self.logp, self.advantage, self.mask)


def chosen(method: str, sample: Sample, score_from: float | None = None) -> Tensor:
    """[R, T] bool: the tokens that the method acts on. Of Clip-Cov the band, of which it takes a few at random."""
    score = sample.score(method)
    if method == "clip_cov":
        return sample.mask & (score > BAND[0]) & (score < BAND[1])
    eligible = sample.mask & (score > 0) if method == "scope" else sample.mask
    found = top_share(score, eligible, SHARES[method], of=sample.mask, threshold=score_from)
    return found.as_mask(sample.mask)


def in_parts(method: str, sample: Sample, size: int, score_from: float | None = None) -> Tensor:
    """The same, each ``size`` responses by themselves."""
    parts = range(0, len(sample.mask), size)
    return torch.cat([chosen(method, sample.part(first, size), score_from) for first in parts])


def jaccard(one: Tensor, other: Tensor) -> float:
    """Tokens in both over tokens in either."""
    either = int((one | other).sum())
    return int((one & other).sum()) / either if either else 1.0


def score_from(method: str, sample: Sample) -> float | None:
    """The server's threshold: from histograms of a quarter of the responses each, as four ranks would send them."""
    added: dict[int, tuple[int, float]] = {}
    quarter = len(sample.mask) // 4
    for rank in range(4):
        own = sample.part(rank * quarter, quarter)
        for index, count, total in zip(*histogram_of(own.score(method)[own.mask].double().numpy()), strict=True):
            held = added.get(int(index), (0, 0.0))
            added[int(index)] = (held[0] + int(count), held[1] + float(total))
    counts, totals = zip(*added.values(), strict=True)
    return threshold(np.array(list(added)), np.array(counts), np.array(totals), SHARES[method], method == "scope")


@torch.no_grad()
def sampled(model, tokenizer, num_groups: int, seed: int) -> Sample:  # type: ignore[no-untyped-def]
    """Fresh responses of the policy as it stands, ``num_groups`` x 8, temperature 1, rewards of the task."""
    was_training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = torch.randint(len(task.prompts()), (num_groups,)).tolist()
        prompts = [task.prompts()[i] for i in drawn for _ in range(GROUP)]
        ids = torch.tensor([tokenizer.encode(p) for p in prompts])
        alive, cache, given = torch.ones(len(ids), dtype=torch.bool), None, ids
        tokens, logps, entropies, masks = [], [], [], []
        for _ in range(grpo.MAX_COMPLETION):
            out = model(input_ids=given, past_key_values=cache, use_cache=True)
            cache, logp = out.past_key_values, out.logits[:, -1].float().log_softmax(-1)
            token = torch.multinomial(logp.exp(), 1)
            logps.append(logp.gather(1, token).squeeze(1))
            entropies.append(-(logp.exp() * logp).sum(-1))
            masks.append(alive)
            token = torch.where(alive.unsqueeze(1), token, tokenizer.pad_token_id)
            tokens.append(token.squeeze(1))
            alive = alive & (token.squeeze(1) != tokenizer.eos_token_id)
            given = token
    model.train(was_training)
    texts = tokenizer.batch_decode(torch.stack(tokens, 1), skip_special_tokens=True)
    rewards = torch.tensor(task.reward(prompts, texts)).view(-1, GROUP)
    advantage = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    mask = torch.stack(masks, 1)
    return Sample(
        torch.stack(logps, 1), torch.stack(entropies, 1), advantage.view(-1, 1).expand(mask.shape).contiguous(), mask
    )


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=2048, help="groups of eight responses in the large step")
    parser.add_argument("--steps", type=int, default=60, help="GRPO steps")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    pairs = _samples(given.groups, given.steps, given.seed)
    print(_against_the_step(pairs))
    print()
    print(_thresholds(pairs))


def _samples(num_groups: int, steps: int, seed: int) -> dict[str, tuple[Sample, Sample]]:
    """Where in the training -> the sample before a step, and the one after it."""
    tokenizer = task.make_tokenizer()
    model = teach.make_model(tokenizer, seed)
    teach.teach(model, tokenizer, seed=seed)
    kept = {0: sampled(model, tokenizer, num_groups, seed)}

    def on_step(step: int) -> None:
        if step in (1, steps // 2, steps // 2 + 1, steps - 1, steps):
            kept[step] = sampled(model, tokenizer, num_groups, seed + step)

    with tempfile.TemporaryDirectory() as folder:
        grpo.make_trainer(model, tokenizer, steps=steps, seed=seed, output_dir=folder, on_step=on_step).train()
    return {f"step {later}": (kept[later - 1], kept[later]) for later in (1, steps // 2 + 1, steps)}


def _against_the_step(pairs: dict[str, tuple[Sample, Sample]]) -> str:
    lines = [
        "| policy at | method | responses (tokens) in a micro-batch | Jaccard with the whole step "
        "| micro-batches whose share is none | chosen / asked for |",
        "|---|---|---|---|---|---|",
    ]
    for where, (_, sample) in pairs.items():
        for method, share in SHARES.items():
            whole = chosen(method, sample)
            for size in MICRO_BATCHES:
                sizes = [int(m.sum()) for m in sample.mask.split(size)]
                none = sum(int(share * n) < 1 for n in sizes) / len(sizes)
                parts = in_parts(method, sample, size)
                taken = sum(sizes_of_share(method, parts, sizes, size, share))
                lines.append(
                    f"| {where} | `{method}` | {size} ({sum(sizes) / len(sizes):.0f}) | {jaccard(whole, parts):.2f} "
                    f"| {100 * none:.0f} % | {taken / (share * sum(sizes)):.2f} |"
                )
    return "\n".join(lines)


def sizes_of_share(method: str, parts: Tensor, sizes: list[int], size: int, share: float) -> list[int]:
    """How many tokens each micro-batch acts on: of Clip-Cov, of the band the share, at least one."""
    in_each = [int(p.sum()) for p in parts.split(size)]
    if method != "clip_cov":
        return in_each
    return [min(held, max(1, int(share * n))) for held, n in zip(in_each, sizes, strict=True)]


def _thresholds(pairs: dict[str, tuple[Sample, Sample]]) -> str:
    lines = [
        "| policy at | method | asked for | chosen, same step | Jaccard | chosen, threshold one step old | Jaccard |",
        "|---|---|---|---|---|---|---|",
    ]
    for where, (before, sample) in pairs.items():
        for method in ("scope", "kl_cov", "forking_tokens"):
            whole, num = chosen(method, sample), int(sample.mask.sum())
            cells = []
            for source in (sample, before):
                found = in_parts(method, sample, 128, score_from(method, source))
                cells.append(f"{100 * int(found.sum()) / num:.2f} % | {jaccard(whole, found):.2f}")
            lines.append(f"| {where} | `{method}` | {100 * SHARES[method]:g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
