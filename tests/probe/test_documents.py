"""Rows that several documents were packed into: each is a response of its own, whatever the rows were."""

import dataclasses

import numpy as np
import pytest
import torch
from support.steps import captured, observed, random_step

from entrostat.probe.capture import Observed, capture
from entrostat.probe.definitions import Settings
from entrostat.probe.signals import signals_of
from entrostat.probe.step import gather

PROMPT = 2
"""Tokens before each document's first token that counts."""


def taken(seen, budget=None):
    generator = torch.Generator().manual_seed(0)
    return capture(seen, measure=None, measure_all=False, budget=budget, generator=generator)


def bare(seen):
    """Without what is given one a row."""
    return dataclasses.replace(seen, advantages=None, prompt=None, reward=None, truncated=None)


def packed(step, num_rows):
    """The responses one behind the other in ``num_rows`` rows, each behind a prompt, the rest of a row padding."""
    rows = [step[i::num_rows] for i in range(num_rows)]
    width = max(sum(PROMPT + len(r["logp"]) for r in row) for row in rows) + 1
    found = {
        name: torch.full((num_rows, width), float("nan"), dtype=torch.float64) for name in ("logp", "entropy", "norm")
    }
    ids, mask = torch.zeros(num_rows, width, dtype=torch.int64), torch.zeros(num_rows, width)
    document = torch.arange(1000, 1000 + width).repeat(num_rows, 1)  # padding: a document a token
    for i, row in enumerate(rows):
        at = 0
        for number, response in enumerate(row):
            end = at + PROMPT + len(response["logp"])
            document[i, at:end] = number
            at += PROMPT
            mask[i, at:end] = 1
            ids[i, at:end] = torch.tensor(response["ids"])
            for name in found:
                found[name][i, at:end] = torch.tensor(response[name], dtype=torch.float64)
            at = end
    seen = Observed(
        logp=found["logp"], entropy=found["entropy"], mask=mask, token_ids=ids, hidden_norm=found["norm"],
        document=document,
    )  # fmt: skip
    return seen, [response for row in rows for response in row]


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_packed_documents_are_the_same_step_as_padded_ones(num_rows):
    seen, order = packed(random_step(3), num_rows)

    one = gather([taken(seen)])
    other = gather([taken(bare(observed(order)))])

    assert one.num_responses == len(order)
    for name in ("seq", "pos", "token_id", "logp", "entropy", "hidden_norm", "length"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert np.array_equal(one.kept.token, other.kept.token)
    mine, theirs = (
        {name: part.value for name, part in signals_of(step, [], Settings()).items()} for step in (one, other)
    )
    assert mine["ppl"] == pytest.approx(theirs["ppl"])
    assert {name for name, value in mine.items() if value is not None} <= set(theirs)


def test_documents_of_several_micro_batches_do_not_run_together():
    step = random_step(4)
    parts = [packed(step[:5], 2), packed(step[5:], 1)]

    found = gather([taken(seen) for seen, _ in parts])

    assert found.length.tolist() == [len(r["logp"]) for _, order in parts for r in order]
    assert found.num_responses == len(step)


def test_a_document_without_a_token_is_none_and_a_batch_of_them_is_empty():
    seen, order = packed(random_step(5), 1)
    first = len(order[0]["logp"]) + PROMPT
    mask = seen.mask.clone()
    mask[:, :first] = 0

    assert gather([taken(dataclasses.replace(seen, mask=mask))]).num_responses == len(order) - 1
    nothing = gather([taken(dataclasses.replace(seen, mask=torch.zeros_like(mask)))])
    assert (nothing.num_responses, nothing.logp.size) == (0, 0)


def test_a_token_that_is_not_finite_is_left_out_and_its_document_stays_in_place():
    seen, order = packed(random_step(6), 1)
    logp = seen.logp.clone()
    logp[0, PROMPT] = float("nan")

    found = gather([taken(dataclasses.replace(seen, logp=logp))])

    assert found.num_invalid == 1
    assert found.length.tolist() == [len(order[0]["logp"]) - 1, *(len(r["logp"]) for r in order[1:])]
    assert found.pos[found.seq == 0].tolist() == list(range(1, len(order[0]["logp"])))


def test_per_token_advantages_may_come_with_documents_and_values_per_row_may_not():
    step = random_step(7)
    seen, order = packed(step, 1)
    advantages = torch.zeros_like(seen.logp)
    advantages[seen.mask != 0] = torch.tensor([a for r in order for a in r["A"]], dtype=torch.float64)

    found = gather([taken(dataclasses.replace(seen, advantages=advantages))])

    assert found.response_advantage.tolist() == [r["A"][0] for r in order]
    with pytest.raises(ValueError, match="reward: given one a row"):
        taken(dataclasses.replace(seen, reward=torch.zeros(1)))
    with pytest.raises(ValueError, match="advantages: given one a row"):
        taken(dataclasses.replace(seen, advantages=torch.zeros(1)))


def test_a_row_without_documents_is_a_response_as_ever():
    assert gather([captured(random_step(8))]).num_responses == len(random_step(8))
