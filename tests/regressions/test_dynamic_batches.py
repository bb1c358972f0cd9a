"""Entropy on the plain loop's path under dynamic batching: micro-batches of any number of responses and tokens."""

import random

import pytest
import torch
from support import mistakes
from support.padded import NO_SERVER, double, padded, sharp_model
from support.spool import spooled, values_of

import entrostat

EXACT, FAR = 2e-5, 2e-3
SIGNALS = ("entropy_mean", "entropy_pos", "entropy_neg", "cov_mean", "sample_logp", "rank_logp_2", "ppl", "scope_score")


@pytest.fixture(scope="module")
def model():
    return sharp_model()


@pytest.fixture(scope="module")
def responses():
    """(prompt, response, advantage): the long ones are mostly of one token, so that length and entropy go together."""
    draw = random.Random(0)
    found = []
    for _ in range(24):
        length = draw.choice([1, 2, 3, 12, 20])
        words = [draw.randrange(2, 22)] * length if length > 3 else [draw.randrange(2, 22) for _ in range(length)]
        prompt = [draw.randrange(2, 22) for _ in range(draw.randint(1, 4))]
        found.append((prompt, words, draw.gauss(0, 1)))
    return found


def by_token_budget(responses, budget):
    """Packed as trainers do: sorted by length, as many to a micro-batch as fit, padding included."""
    packs, pack = [], []
    for response in sorted(responses, key=lambda r: len(r[1])):
        if pack and (len(pack) + 1) * len(response[1]) > budget:
            packs.append(pack)
            pack = []
        pack.append(response)
    return [*packs, pack]


def tensors(pack):
    """Prompts padded on the left, responses on the right: ids, attention [B, L], first, mask [B, T], advantages [B]."""
    before, after = max(len(p) for p, _, _ in pack), max(len(r) for _, r, _ in pack)
    ids = torch.zeros(len(pack), before + after, dtype=torch.int64)
    attention = torch.zeros_like(ids)
    for i, (prompt, response, _) in enumerate(pack):
        begin, end = before - len(prompt), before + len(response)
        ids[i, begin:end], attention[i, begin:end] = torch.tensor(prompt + response), 1
    return ids, attention, before, attention[:, before:], torch.tensor([a for _, _, a in pack], dtype=torch.float64)


def observe(probe, model, pack, micro_batches):
    ids, attention, first, mask, advantages = tensors(pack)
    with torch.no_grad():
        hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state
    probe.observe(
        hidden=hidden[:, first - 1 : -1], head=model.lm_head.weight, labels=ids[:, first:], mask=mask,
        advantages=advantages, micro_batches=micro_batches,
    )  # fmt: skip


def recorded(model, packs, folder):
    with entrostat.Probe("mine", url=NO_SERVER, directory=folder) as probe:
        for pack in packs:
            observe(probe, model, pack, len(packs))
        probe.end_step(1)
    return values_of(spooled(folder)[0]["step_metric"], 1)


@pytest.fixture(scope="module")
def truth(model, responses):
    """The micro-batches of the packing under test, from an independent float64 forward."""
    model64 = double(model)
    return [padded(model64, *tensors(pack)[:4]) for pack in by_token_budget(responses, 48)]


def test_the_mean_is_over_the_tokens_of_all_micro_batches(model, responses, truth, tmp_path):
    packs = by_token_budget(responses, 48)
    assert len({len(p) for p in packs}) > 2
    assert len({sum(len(r) for _, r, _ in p) for p in packs}) > 2
    parts = [(b.entropy(), b.mask) for b in truth]

    found = recorded(model, packs, tmp_path)["entropy_mean"]

    assert found == pytest.approx(mistakes.right(parts), rel=EXACT)
    for wrong in (mistakes.mean_of_micro_batches, mistakes.by_responses, mistakes.over_padding):
        assert found != pytest.approx(wrong(parts), rel=FAR), wrong
    shifted = [(b.entropy(shift=1), b.mask) for b in truth]
    assert found != pytest.approx(mistakes.right(shifted), rel=FAR)


@pytest.mark.parametrize("budget", [20, 48, 100, 10_000])
def test_however_a_step_is_packed_its_signals_are_the_same(model, responses, tmp_path, budget):
    alone = recorded(model, [[r] for r in responses], tmp_path / "alone")
    packed = recorded(model, by_token_budget(responses, budget), tmp_path / "packed")

    assert [packed[name] for name in SIGNALS] == pytest.approx([alone[name] for name in SIGNALS], rel=1e-4, abs=1e-6)


def test_hidden_states_that_were_not_shifted_are_refused(model, responses, tmp_path):
    ids, attention, first, mask, _ = tensors(responses)
    hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state

    with (
        entrostat.Probe("mine", url=NO_SERVER, directory=tmp_path) as probe,
        pytest.raises(ValueError, match="drop the last position of the hidden states"),
    ):
        probe.observe(hidden=hidden, head=model.lm_head.weight, labels=ids[:, first:], mask=mask)


def test_what_stands_on_padding_reaches_no_signal(model, responses, tmp_path):
    """Labels, advantages and states of padding hold garbage, NaN included: the step is what it was."""
    packs = by_token_budget(responses, 48)
    clean = recorded(model, packs, tmp_path / "clean")
    with entrostat.Probe("mine", url=NO_SERVER, directory=tmp_path / "dirty") as probe:
        for pack in packs:
            ids, attention, first, mask, advantages = tensors(pack)
            hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state[:, first - 1 : -1].detach()
            is_padding = mask == 0
            probe.observe(
                hidden=hidden.masked_fill(is_padding.unsqueeze(2), torch.nan),
                head=model.lm_head.weight,
                labels=ids[:, first:].masked_fill(is_padding, 10**6),
                mask=mask,
                advantages=advantages.unsqueeze(1).expand(mask.shape).masked_fill(is_padding, torch.nan),
                micro_batches=len(packs),
            )
        probe.end_step(1)
    dirty = values_of(spooled(tmp_path / "dirty")[0]["step_metric"], 1)

    assert {n: dirty[n] for n in SIGNALS} == pytest.approx({n: clean[n] for n in SIGNALS}, rel=1e-12)
    assert dirty["num_invalid_tokens"] == 0
