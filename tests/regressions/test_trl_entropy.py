"""Entropy on TRL's path, against an independent float64 forward of the same model on the same padded batch.

``../shared/peers.md`` section 5: others had it shifted by one position, averaged over padding, weighted by micro-batch.
Each test also makes the mistake, and sees that it would be told apart.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support import mistakes, tiny_trl
from support.padded import NO_SERVER, double, padded, sharp_model
from support.spool import spooled, values_of

import entrostat

EXACT = 2e-5
"""Relative: the run is in float32, the forward it is held to in float64."""
FAR = 1e-2
"""Relative: a mistake must move a mean by this to be told apart, 500 times what is allowed."""


@dataclass(frozen=True)
class Trained:
    """The first step of a run: its signals, its token rows (all of them), its micro-batches."""

    values: dict
    token: object
    batches: list


TRL_RUNS = {
    "grpo": ("grpo", {}),
    "grpo, two micro-batches": ("grpo", {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}),
    "rloo, four micro-batches": ("rloo", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}),
}


@pytest.fixture(scope="module", params=TRL_RUNS)
def trained(request, tmp_path_factory):
    """A real TRL trainer, attached, with every micro-batch of its first step kept as TRL padded it."""
    kind, settings = TRL_RUNS[request.param]
    folder = tmp_path_factory.mktemp("trl")
    trainer = tiny_trl.trainer(folder / "out", kind, policy=sharp_model(), max_steps=1, **settings)
    model64, batches = double(trainer.model), []
    original = trainer._compute_loss

    def compute_loss(model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        first = inputs["prompt_ids"].shape[1]
        batches.append(padded(model64, ids, attention, first, inputs["completion_mask"], trainer.temperature))
        return original(model, inputs)

    trainer._compute_loss = compute_loss
    entrostat.attach(trainer, url=NO_SERVER, directory=folder / "spool", tokens="all")
    trainer.train()
    tables, _ = spooled(folder / "spool")
    token = tables["token"]
    return Trained(values_of(tables["step_metric"], 1), token[token.step == 1], batches)


def entropies(run, shift=0):
    return [(b.entropy(shift), b.mask) for b in run.batches]


def flat(parts):
    return torch.cat([v[m] for v, m in parts]).numpy()


def test_each_token_has_the_entropy_of_the_distribution_it_was_drawn_from(trained):
    assert trained.token.entropy.to_numpy() == pytest.approx(flat(entropies(trained)), rel=1e-4, abs=1e-5)
    assert trained.token.logp.to_numpy() == pytest.approx(
        flat([(b.logp(), b.mask) for b in trained.batches]), rel=1e-4, abs=1e-5
    )
    assert trained.values["entropy_mean"] == pytest.approx(mistakes.right(entropies(trained)), rel=EXACT)


def test_each_tokens_candidates_are_those_of_the_distribution_it_was_drawn_from(trained):
    def best(shift):
        return torch.cat([b.before(shift).topk(3, -1).values[b.mask] for b in trained.batches]).numpy()

    found = np.stack(trained.token.top_logps.to_numpy())
    assert found == pytest.approx(best(0), rel=1e-4, abs=1e-4)
    assert np.median(np.abs(found - best(1))) > 0.1


def test_one_position_later_would_be_told_apart(trained):
    shifted = flat(entropies(trained, shift=1))

    assert np.median(np.abs(trained.token.entropy.to_numpy() - shifted)) > 0.1
    assert trained.values["entropy_mean"] != pytest.approx(shifted.mean(), rel=FAR)


def test_padding_is_in_no_mean(trained):
    assert any(not b.mask.all() for b in trained.batches), "the task must leave padding"
    assert len(trained.token) == trained.values["num_tokens"] == sum(int(b.mask.sum()) for b in trained.batches)

    for wrong in (mistakes.over_padding, mistakes.padding_as_zero):
        assert trained.values["entropy_mean"] != pytest.approx(wrong(entropies(trained)), rel=FAR), wrong


def test_a_micro_batch_counts_by_its_tokens(trained):
    found = trained.values["entropy_mean"]

    assert found != pytest.approx(mistakes.mean_of_responses(entropies(trained)), rel=FAR)
    if len(trained.batches) > 1:
        assert len({int(b.mask.sum()) for b in trained.batches}) > 1, "the micro-batches must differ in tokens"
        assert found != pytest.approx(mistakes.mean_of_micro_batches(entropies(trained)), rel=FAR)


def test_a_response_counts_once_where_the_signal_is_a_mean_over_responses(trained):
    parts = [(b.logp(), b.mask) for b in trained.batches]

    assert trained.values["sample_logp"] == pytest.approx(mistakes.mean_of_responses(parts), rel=EXACT)
    assert trained.values["sample_logp"] != pytest.approx(mistakes.right(parts), rel=FAR)
