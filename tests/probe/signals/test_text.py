"""The text signals against loops over the responses, whole and however the step is cut; and what becomes rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import text_oracle as oracle
from support.steps import measure_of, observed, random_step
from support.texts import PIECES, spell

from entrostat.probe.capture import capture
from entrostat.probe.definitions import Settings
from entrostat.probe.reduce import Reducer
from entrostat.probe.signals import signals_of
from entrostat.probe.step import gather
from entrostat.probe.text.decode import texts_of
from entrostat.probe.text.reader import Reader
from entrostat.wire.declared.text import CATEGORIES
from entrostat.wire.declared.text import SIGNALS as DECLARED
from entrostat.wire.mergeable import merged

KINDS = dict(zip(PIECES, ["formal", "formal", "logical", "metacognitive", "semantic", "semantic", "semantic", "formal",
                          "semantic", "metacognitive", "semantic"]))  # fmt: skip
BOX, HAN = PIECES.index(" \\boxed{2}"), PIECES.index(" 你")


def step_with_texts(seed):
    """Random responses, among them long ones of one piece; prompts of which a third have a Chinese letter."""
    rng = np.random.default_rng(seed)
    step = random_step(seed, num_prompts=4, group=3, longest=9) + random_step(seed + 1, 1, 2, longest=90)
    for number, response in enumerate(step):
        count = len(response["ids"])
        if number % 4 == 0:
            response["ids"] = [int(rng.integers(11))] * count
        elif number % 3 == 0:
            response["ids"] = [BOX, *[i if i != BOX else 0 for i in response["ids"][1:]]]
        response["prompt_ids"] = [HAN if rng.random() < 0.3 else 4, -100]
        response["prompt_text"] = spell(response["prompt_ids"][:1])
        response["pieces"] = [PIECES[i] for i in response["ids"]]
        response["text"] = "".join(response["pieces"])
        response["words"] = words(response["pieces"])
    return step


def words(pieces):
    split = {" \\boxed{2}": ["\\", "boxed", "{", "2", "}"], "\n": []}
    joined = []
    for i, piece in enumerate(pieces):
        # "so" has no space before it and grows onto a word that goes before.
        if piece == "so" and i and joined and pieces[i - 1] in {" 1", " but", " Wait", " jump", " x", "so", " check"}:
            joined[-1] += "so"
        else:
            joined += split.get(piece, [piece.strip()])
    return [part for word in joined for part in (word[i : i + 16] for i in range(0, len(word), 16))]


def micro_batch(step):
    seen = replace(observed(step), prompt_ids=torch.tensor([r["prompt_ids"] for r in step]))
    return capture(
        seen, measure=measure_of(step), measure_all=True, budget=None, generator=torch.Generator().manual_seed(0)
    )


def parts_of(captures):
    data = gather(captures)
    reading = Reader(texts_of(spell)).read(data)
    names = {signal.name for signal in DECLARED}
    return {n: p for n, p in signals_of(replace(data, reading=reading), [], Settings()).items() if n in names}


def expected_of(step):
    return oracle.rates(step) | oracle.by_category(step, KINDS.get, CATEGORIES)


@given(seed=st.integers(0, 10_000), cut=st.integers(1, 13))
@settings(max_examples=25, deadline=None)
def test_every_text_signal_is_its_definition_over_micro_batches_and_ranks(seed, cut):
    step = step_with_texts(seed)
    expected = expected_of(step)

    whole = parts_of([micro_batch(step)])
    in_two = parts_of([micro_batch(step[:cut]), micro_batch(step[cut:])])
    ranks = [parts_of([micro_batch(step[:cut])]), parts_of([micro_batch(step[cut:])])]
    over_ranks = {name: merged([ranks[0][name], ranks[1][name]]) for name in whole}

    assert set(whole) == set(expected) == {s.name for s in DECLARED}
    for found in (whole, in_two, over_ranks):
        for name, part in found.items():
            assert part.value == (None if expected[name] is None else pytest.approx(expected[name], abs=1e-12)), name


def test_the_cases_of_the_rates_all_come_up():
    found = [expected_of(step_with_texts(seed)) for seed in range(20)]

    for name in ("format_violation_rate", "language_mixing_rate", "repetition_rate"):
        assert 0 < np.mean([values[name] for values in found]) < 1


def test_shares_of_the_categories_add_up_to_one():
    found = parts_of([micro_batch(step_with_texts(3))])

    assert sum(found[f"share_{name}"].value for name in CATEGORIES) == pytest.approx(1)


def test_without_prompts_language_mixing_is_absent_and_says_why():
    micro = micro_batch(step_with_texts(0))
    del micro.tensors["prompt_ids"]
    tables = Reducer(reader=Reader(texts_of(spell)))(1, [micro], [], {})
    names = tables["step_metric"].column("name").to_pylist()

    assert "format_violation_rate" in names
    assert "language_mixing_rate" not in names
    assert "the prompts' tokens were not given: language_mixing_rate" in tables["event"].to_pylist()[0]["message"]
    assert tables["sequence"].column("language_mixing").null_count == tables["sequence"].num_rows


def test_without_a_tokenizer_the_family_and_its_columns_are_absent_with_the_reason():
    tables = Reducer()(1, [micro_batch(step_with_texts(0))], [], {})

    assert not {s.name for s in DECLARED} & set(tables["step_metric"].column("name").to_pylist())
    assert "no tokenizer was at hand: format_violation_rate" in tables["event"].to_pylist()[0]["message"]
    for table, column in (("sequence", "answer"), ("sequence", "format_violation"), ("token", "category")):
        assert tables[table].column(column).null_count == tables[table].num_rows


@pytest.mark.parametrize("budget", [None, 30])
def test_rows_say_what_their_own_response_and_token_say(budget):
    step = step_with_texts(1)
    seen = replace(observed(step), prompt_ids=torch.tensor([r["prompt_ids"] for r in step]))
    generator = torch.Generator().manual_seed(0)
    micro = capture(seen, measure=measure_of(step), measure_all=False, budget=budget, generator=generator)
    tables = Reducer(reader=Reader(texts_of(spell), keep_text=True))(1, [micro], [], {})

    token, sequence = tables["token"].to_pylist(), tables["sequence"].to_pylist()
    assert len(token) > 20
    for row in token:
        piece = step[row["seq"]]["pieces"][row["pos"]]
        # A token by itself reads as it does behind another.
        assert (row["text"], row["category"]) == (piece, KINDS[piece])
    for row in sequence:
        boxes = oracle.boxes(step[row["seq"]]["text"])
        assert row["format_violation"] == (len(boxes) != 1)
        assert (row["answer"] is None) == (not boxes)
        assert row["repetition"] == oracle.is_repetitive(step[row["seq"]]["words"])
    assert len({row["answer"] for row in sequence} - {None}) == 1  # every box says 2


def test_texts_of_tokens_stay_unless_they_are_asked_for():
    tables = Reducer(reader=Reader(texts_of(spell)))(1, [micro_batch(step_with_texts(0))], [], {})

    assert tables["token"].column("text").null_count == tables["token"].num_rows
    assert tables["token"].column("category").null_count == 0


def test_a_tokenizer_that_fails_costs_the_texts_alone_and_is_reported_once(caplog):
    def broken(ids):
        raise KeyError("planted")

    reduce = Reducer(reader=Reader(texts_of(broken)))
    first, second = (reduce(n, [micro_batch(step_with_texts(0))], [], {}) for n in (1, 2))

    assert "entropy_mean" in first["step_metric"].column("name").to_pylist()
    events = {row["kind"]: row["message"] for row in first["event"].to_pylist()}
    assert "KeyError: 'planted'" in events["warning"]
    assert "format_violation_rate" in events["absent"]
    assert "event" not in second
    assert caplog.text.count("reading texts failed") == 1
