"""Signals made by the views against slow oracles: any split of a step over ranks gives the same values."""

import math

import numpy as np
import pytest
from reference import signals_oracle as oracle

from entrostat.wire.bins import PER_OCTAVE, histogram_of
from entrostat.wire.cells import cells_of
from entrostat.wire.declared.covariance import COVARIANCE_TOPS

GROUP = 8
BIN = 2 ** (1 / PER_OCTAVE) - 1


def made_up(seed, num_prompts=5):
    """A step of responses as the oracle takes them; groups of ``GROUP``, in no order."""
    draw = np.random.default_rng(seed)
    step = []
    for prompt in range(num_prompts):
        level = draw.normal(0, 0.5)
        for _ in range(GROUP):
            n, advantage = int(draw.integers(1, 40)), float(draw.normal())
            answer = None if draw.random() < 0.2 else int(draw.integers(0, 3))
            step.append(
                {
                    "prompt": prompt,
                    "logp": (-draw.gamma(1.0, 0.4 * math.exp(level), n)).tolist(),
                    "entropy": draw.gamma(0.7, 0.6, n).tolist(),
                    "A": [advantage] * n,
                    "reward": float(answer == 1),
                    "answer": answer,
                    "completion": int(draw.integers(0, 6)),
                }
            )
    draw.shuffle(step)
    return step


def flat(step, key):
    return np.array([value for r in step for value in r[key]])


def tables(step, number, all_tokens):
    """What a rank sends of its share of a step; ``all_tokens`` as a run of one rank does not send cells."""
    logp, advantage = flat(step, "logp"), flat(step, "A")
    scope = np.exp(logp) * (1 - np.exp(logp)) * np.maximum(advantage, 0)
    rows = {"histogram": [], "cell": [], "sequence": [], "step_metric": [{"step": number, "name": "n", "value": 1}]}
    for name, values in (("entropy", flat(step, "entropy")), ("scope_score", scope)):
        columns = zip(*(c.tolist() for c in histogram_of(values)), strict=True)
        rows["histogram"] += [{"step": number, "name": name, "bin": b, "count": c, "total": t} for b, c, t in columns]
    cells = {name: column.tolist() for name, column in cells_of(logp, advantage).items()}
    rows["cell"] = [{"step": number, **dict(zip(cells, row, strict=True))} for row in zip(*cells.values(), strict=True)]
    for seq, r in enumerate(step):
        mean_logp = float(np.mean(r["logp"]))
        rows["sequence"].append(
            {
                "step": number, "seq": seq, "prompt": r["prompt"], "length": len(r["logp"]), "reward": r["reward"],
                "advantage": r["A"][0], "mean_logp": mean_logp, "mean_entropy": float(np.mean(r["entropy"])),
                "ppl": math.exp(-mean_logp), "completion": r["completion"], "answer": r["answer"],
            }
        )  # fmt: skip
    return rows if all_tokens else {name: kept for name, kept in rows.items() if name != "cell"}


def values(ask, step=1):
    return dict(ask(f"select name, value from step_metric where step = {step} and name != 'n'"))


def send(produce, step, num_ranks, run="r", number=1, **given):
    bounds = np.linspace(0, len(step), num_ranks + 1).astype(int)
    for rank in range(num_ranks):
        part = step[bounds[rank] : bounds[rank + 1]]
        produce(run, rank=rank, world_size=num_ranks, settings={"group_size": GROUP}, session=num_ranks, **given).send(
            **tables(part, number, num_ranks > 1)
        )


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_groups_agree_with_the_oracle_however_they_lie_on_ranks(produce, ask, seed, num_ranks):
    step = made_up(seed)
    send(produce, step, num_ranks)
    found = values(ask)

    expected = {
        "cov_group": oracle.cov_group(step),
        "ln_ppl_z_pos": oracle.ln_ppl_z(step, 1),
        "ln_ppl_z_neg": oracle.ln_ppl_z(step, -1),
        "unique_completions": oracle.unique_completions(step),
        "z_bound": oracle.z_bound(step),
        **{f"maj_at_{k}": oracle.maj_at_k(step, k) for k in (2, 4, 8)},
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected, abs=2e-6)
    assert not {"maj_at_16", "maj_at_64"} & set(found)


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_quantiles_are_within_their_bin_and_top_shares_within_the_last_bin(produce, ask, seed, num_ranks):
    step = made_up(seed)
    send(produce, step, num_ranks)
    found, entropy = values(ask), flat(step, "entropy")

    for suffix, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
        true = oracle.quantile(entropy.tolist(), share)
        assert found[f"entropy_{suffix}"] == pytest.approx(true, rel=BIN, abs=2**-13)
    assert found["entropy_top20"] == pytest.approx(oracle.mean_of_top(entropy.tolist(), 0.2), rel=0.005)
    assert found["scope_mass_top5"] == pytest.approx(oracle.mass_of_top(oracle.scope_scores(step), 0.05), rel=0.02)


def test_values_in_the_open_bins_at_the_ends_count_by_their_mean(produce, ask):
    for values_, median in (([1e-6, 3e-6, 5e-6], 3e-6), ([100.0, 300.0], 200.0)):
        one = produce(f"r{median}")
        columns = zip(*(c.tolist() for c in histogram_of(np.array(values_))), strict=True)
        one.send(histogram=[{"step": 1, "name": "entropy", "bin": b, "count": c, "total": t} for b, c, t in columns])

        ((found,),) = ask(f"select value from step_metric where run = 'r{median}' and name = 'entropy_p50'")
        assert found == pytest.approx(median)


def test_a_score_of_zero_has_no_top(produce, ask):
    produce().send(histogram=[{"step": 1, "name": "scope_score", "bin": 0, "count": 9, "total": 0.0}])

    assert ask("select * from step_metric where name = 'scope_mass_top5'") == []


@pytest.mark.parametrize("seed", range(6))
def test_cells_of_several_ranks_come_near_the_covariance_of_their_tokens(produce, ask, seed):
    step = made_up(seed, num_prompts=60)
    send(produce, step, 4)
    found, covariance = values(ask), np.array(oracle.cov_tokens(step))

    for suffix, share in COVARIANCE_TOPS.items():
        true, error = oracle.cov_top(step, share), {"0_02pct": 0.25, "0_2pct": 0.15, "2pct": 0.05, "20pct": 0.01}
        assert found[f"cov_top_{suffix}"] == pytest.approx(true, rel=error[suffix]), suffix
    assert found["cov_top_0_02pct"] <= covariance.max()


def test_one_cell_a_token_gives_the_covariance_itself(produce, ask):
    draw = np.random.default_rng(0)
    # Powers of two, 40 of each sign: no two tokens share a cell.
    logp = -(2.0 ** np.arange(-8, 2, 0.25))[:40]
    step = [{"prompt": 0, "logp": logp.tolist(), "entropy": [1.0] * 40, "A": draw.normal(size=40).tolist()}]
    for rank in (0, 1):
        part = slice(rank * 20, rank * 20 + 20)
        cells = {k: v.tolist() for k, v in cells_of(logp[part], np.array(step[0]["A"][part])).items()}
        produce(rank=rank, world_size=2).send(
            cell=[{"step": 1, **dict(zip(cells, row, strict=True))} for row in zip(*cells.values(), strict=True)]
        )

    assert values(ask)["cov_top_20pct"] == pytest.approx(oracle.cov_top(step, 0.2), rel=1e-9)
    assert values(ask)["cov_top_0_2pct"] == pytest.approx(max(oracle.cov_tokens(step)), rel=1e-9)


def test_the_exact_top_shares_of_one_rank_are_kept(produce, ask):
    produce().send(step_metric=[{"step": 1, "name": "cov_top_2pct", "merge": "mean", "state": [4, 2]}])

    assert ask("select cov_top_2pct, cov_top_20pct from step") == [(0.5, None)]


def test_a_group_that_is_not_whole_is_left_out(produce, ask):
    step = made_up(3)
    whole = [r for r in step if r["prompt"] != 2]
    send(produce, [r for i, r in enumerate(step) if r["prompt"] != 2 or i % 2], 2)

    assert values(ask)["cov_group"] == pytest.approx(oracle.cov_group(whole), abs=2e-6)
    assert ask("select count(*) from prompt where not is_whole") == [(1,)]
    assert ask("select count(*) from sequence where ln_ppl_z is null and prompt != 2") == [(0,)]
    assert ask("select count(*) from sequence where ln_ppl_z is not null and prompt = 2") == [(0,)]


def response(seq, mean_logp, **more):
    return {"step": 1, "seq": seq, "length": 1, "mean_logp": mean_logp, "mean_entropy": 0.5, "ppl": 1.0, **more}


def test_equal_responses_have_a_score_of_zero_and_lone_ones_none(produce, ask):
    produce().send(
        sequence=[
            response(0, -0.3, prompt=1),
            response(1, -0.3000001, prompt=1),
            response(2, -0.9, prompt=2),
            response(3, -0.9),
            response(4, -1.0, prompt=3),
            response(5, -3.0, prompt=3),
        ]
    )

    assert [z for (z,) in ask("select ln_ppl_z from sequence order by seq")] == [0, 0, None, None, -1, 1]


def test_without_advantages_answers_or_hashes_their_signals_are_absent(produce, ask):
    produce().send(sequence=[response(i, -0.1 * i, prompt=1, reward=float(i == 1)) for i in range(4)])

    assert set(values(ask)) == {"z_bound"}


def test_what_groups_are_made_of_is_not_rounded(produce, ask):
    produce().send(sequence=[response(0, -0.123456789, reward=1 / 3, advantage=1e-6)])

    (row,) = ask("select mean_logp, reward, advantage from sequence")
    assert row == pytest.approx((-0.123456789, 1 / 3, 1e-6), rel=1e-7)


def test_a_step_says_which_ranks_are_there_and_the_derived_signals_too(produce, ask):
    step = made_up(0)
    ranks = [produce(rank=k, world_size=2, settings={"group_size": GROUP}) for k in (0, 1)]
    for number in (1, 2):
        ranks[0].send(**tables(step[:20], number, True))
    ranks[1].send(**tables(step[20:], 1, True))

    assert ask("select step, num_ranks, world_size, is_complete from step order by step") == [
        (1, 2, 2, True),
        (2, 1, 2, False),
    ]
    names = "name in ('entropy_p50', 'cov_top_2pct', 'scope_mass_top5')"
    assert ask(
        f"select step, complete, num_parts, count(*) from step_metric where {names} group by all order by 1"
    ) == [
        (1, True, 2, 3),
        (2, False, 1, 3),
    ]
    assert ask("select complete from step_metric where name in ('cov_group', 'maj_at_2') and step = 1") == [
        (True,),
        (True,),
    ]


def test_the_wide_view_and_curves_have_the_values_of_the_long_one(store, produce, ask):
    send(produce, made_up(1), 2)
    long = {name: value for name, value in values(ask).items() if value is not None}

    columns = ", ".join(long)
    assert dict(zip(long, ask(f"select {columns} from step")[0], strict=True)) == pytest.approx(long)
    curves = store.series(["r"], list(long), None, None, 10)
    assert {c["name"]: c["value"][0] for c in curves} == pytest.approx(long)
    assert set(long) <= set(store.run("r")["names"])


def test_rows_that_a_resume_superseded_are_not_in_them(produce, ask):
    first = produce(settings={"group_size": GROUP})
    for number in (1, 2, 3):
        first.send(**tables(made_up(number), number, False))
    again = produce(session=2, resume_step=1)
    again.send(**tables(made_up(7), 2, False))

    assert [s for (s,) in ask("select distinct step from step_metric where name = 'z_bound' order by 1")] == [1, 2]
    assert values(ask, 2)["cov_group"] == pytest.approx(oracle.cov_group(made_up(7)), abs=2e-6)


TOUCHES = {"entropy_mean": set(), "entropy_p50": {"histogram_part"}, "cov_group": {"sequence_row"},
           "cov_top_2pct": {"cell_part"}, "maj_at_2": {"sequence_row"}, "d_collapse": set()}  # fmt: skip


@pytest.mark.parametrize("name", TOUCHES)
def test_a_question_for_one_signal_reads_no_table_of_the_others(store, produce, name):
    send(produce, made_up(0), 2)  # of an empty table the engine's plan has nothing
    question = f"select step, value from step_metric where run = 'r' and name in ('{name}', 'wall_time_s')"
    plan = store.write(lambda cursor: cursor.execute(f"explain (format json) {question}").fetchall()[0][1])

    rows = ("histogram_part", "cell_part", "sequence_row", "token_row")
    assert {table for table in rows if table in plan} == TOUCHES[name]
