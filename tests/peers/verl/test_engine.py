"""verl's real FSDP2 engine with its real ``ppo_loss`` on the CPU: watched, the numbers are the same; acted on, ours."""

import json
import logging
import math
import types
from functools import partial

import numpy as np
import pytest
import torch
from peers.verl import engine as tiny
from reference import signals_oracle as oracle
from support.spool import spooled, values_of
from transformers import Qwen2ForCausalLM
from verl.workers.utils.losses import ppo_loss

import entrostat.trainer_adapters.verl.engine_run as engine_run
from entrostat.interventions.chain import chain
from entrostat.interventions.methods import LEVERS, METHODS, SAMPLING
from entrostat.interventions.policy_loss import policy_loss
from entrostat.interventions.transform import GroupFacts
from entrostat.trainer_adapters.controller import Intent
from entrostat.trainer_adapters.session import Session
from entrostat.trainer_adapters.verl import acting, taps
from entrostat.wire.errors import AttachError
from entrostat.wire.messages import ActiveIntervention, DesiredState

CANDIDATES = 8
NO_DUAL_CLIP = {"clip_ratio_c": 1e9}


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    tiny.join_one_process(folder / "rendezvous")
    return tiny.save_policy(folder)


@pytest.fixture(scope="session")
def plain(policy):
    """The same weights in transformers' own model, in float64."""
    return Qwen2ForCausalLM.from_pretrained(policy, dtype=torch.float64, attn_implementation="eager").eval()


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """The taps are in, and the environment is a user's; gives what closes an engine's run and reads its spool."""
    for name, value in {"DIR": str(tmp_path), "URL": "http://127.0.0.1:9", "RUN": "mine"}.items():
        monkeypatch.setenv(f"ENTROSTAT_{name}", value)
    taps.install()
    yield lambda engine: closed(engine, tmp_path)
    taps.uninstall()


def closed(engine, folder):
    getattr(engine, taps.RUN).close(0.0)
    return spooled(folder)


def switch_on(engine, **active):
    getattr(engine, taps.RUN).board.put(active)


def begun(engine, config):
    """The engine's run, before its first update."""
    setattr(engine, taps.RUN, taps.begin(engine, config))
    return getattr(engine, taps.RUN)


# With nothing switched on ---------------------------------------------------------------------------------------------


WAYS = {
    "padded": ({}, {}, {}),
    "packed": ({"use_remove_padding": True}, {}, {}),
    "with its entropy bonus": ({}, {"calculate_entropy": True}, {"entropy_coeff": 0.01}),
    "in bf16": ({"use_remove_padding": True, "param_dtype": "bf16"}, {}, {}),
    "LoRA": ({"model_options": {"lora_rank": 4, "enable_gradient_checkpointing": True}}, {}, {}),
    "to a length": ({"use_remove_padding": True, "pad_to_length": True, "pad_to_length_bucket": 64}, {}, {}),
    "dynamic micro-batches": (
        {"use_remove_padding": True}, {"use_dynamic_bsz": True, "max_token_len_per_gpu": 60}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["observe", "act"])
@pytest.mark.parametrize("way", WAYS)
def test_losses_gradients_and_weights_are_the_same_to_the_bit(policy, watched, monkeypatch, way, mode):
    monkeypatch.setenv("ENTROSTAT_MODE", mode)
    options, settings, actor = WAYS[way]
    settings = settings | {"use_remove_padding": options.get("use_remove_padding", False)}
    config = tiny.actor_config(**actor)

    def trained():
        torch.manual_seed(0)
        engine = tiny.build(policy, **options)
        steps = [tiny.update(engine, config, tiny.as_data(tiny.sequences(s), **settings)) for s in range(3)]
        return engine, steps, torch.rand(3)

    engine, seen, drawn = trained()
    tables, _ = watched(engine)
    taps.uninstall()
    other, unseen, drawn_alone = trained()

    assert not hasattr(other, taps.RUN)
    assert sorted(tables["step_metric"].query("name == 'rank_logp_2'").step) == [1, 2, 3]
    assert "warning" not in set(tables["event"].kind)
    for a, b in zip(seen, unseen, strict=True):
        assert a.losses == b.losses
        assert a.metrics == b.metrics
        assert all(torch.equal(a.gradients[n], b.gradients[n]) for n in b.gradients)
    after, alone = tiny.weights(engine), tiny.weights(other)
    assert all(torch.equal(after[n], alone[n]) for n in alone)
    assert torch.equal(drawn, drawn_alone)


def test_what_is_no_update_of_a_policy_passes_through(policy, watched):
    engine = tiny.build(policy)
    data = tiny.as_data(tiny.sequences())

    with engine.eval_mode():
        output = engine.infer_batch(data)
    with engine.train_mode():
        engine.train_batch(data, lambda model_output, data, dp_group: (model_output["log_probs"].values().sum(), {}))

    assert set(output["model_output"]) == {"log_probs"}
    assert not hasattr(engine, taps.RUN)


# What is recorded -----------------------------------------------------------------------------------------------------


def as_oracle(plain, seqs):
    """The sequences as the oracle's step: a list of responses, their masked tokens alone."""
    step = []
    with torch.no_grad():
        for i, response in enumerate(seqs.responses):
            kept = (seqs.masks[i] != 0).numpy()
            logps = tiny.logits_of(plain, seqs, i).log_softmax(-1).numpy()[kept]
            ids = response.numpy()[kept]
            step.append({
                "ids": ids.tolist(), "logps": logps.tolist(), "logp": logps[np.arange(len(ids)), ids].tolist(),
                "entropy": (-(np.exp(logps) * logps).sum(1)).tolist(), "sum_p2": (np.exp(logps) ** 2).sum(1).tolist(),
                "top1": (logps.argmax(1) == ids).tolist(), "ranks": (-np.sort(-logps, axis=1))[:, :CANDIDATES].tolist(),
                "A": seqs.advantages[i].double().numpy()[kept].tolist(),
                "old": seqs.old[i].double().numpy()[kept].tolist(),
                "rollout": seqs.rollout[i].double().numpy()[kept].tolist(),
                "norm": [1.0] * len(ids), "prompt": seqs.uids[i], "reward": float(seqs.scores[i].sum()),
            })  # fmt: skip
    return step


FORMULAS = {
    "entropy_mean": oracle.entropy_mean,
    "entropy_pos": lambda s: oracle.entropy_mean(s, +1),
    "entropy_neg": lambda s: oracle.entropy_mean(s, -1),
    "rank_logp_2": lambda s: oracle.rank_logp(s, 2),
    "sample_logp": oracle.sample_logp,
    "top1_rate": oracle.top1_rate,
    "cov_mean": lambda s: np.mean(oracle.cov_tokens(s)),
    "cov_top_20pct": lambda s: oracle.cov_top(s, 0.2),
    "token_grad_norm_logits": lambda s: oracle.token_grad_norm(s, 0.2, 0.28, with_norm=False),
    "support95_mean": lambda s: np.mean([oracle.support95(x, CANDIDATES) for r in s for x in r["logps"]]),
    "self_certainty": lambda s: np.mean([oracle.self_certainty_of(x) for r in s for x in r["logps"]]),
    "scope_score": lambda s: np.mean(oracle.scope_scores(s)),
    "ppl": oracle.ppl,
    "reward_mean": lambda s: np.mean([r["reward"] for r in s]),
    "pass_at_1": lambda s: oracle.pass_at_k(s, 1),
    "pass_at_2": lambda s: oracle.pass_at_k(s, 2),
    "zero_variance_groups": oracle.zero_variance_groups,
    "length_mean": lambda s: np.mean([len(r["logp"]) for r in s]),
    "clip_fraction_low": lambda s: oracle.clip_fraction(s, low=0.2),
    "clip_fraction_high": lambda s: oracle.clip_fraction(s, high=0.28),
    "approx_kl": oracle.approx_kl,
    "ratio_max": oracle.ratio_max,
    "rollout_kl": lambda s: oracle.mismatch(s, "rollout_kl"),
    "rollout_logp_gap": lambda s: oracle.mismatch(s, "rollout_logp_gap"),
    "num_tokens": lambda s: sum(len(r["logp"]) for r in s),
    "num_responses": len,
    "num_invalid_tokens": lambda s: 0,
}


@pytest.mark.parametrize("use_remove_padding", [False, True], ids=["padded", "packed"])
def test_signals_are_the_oracles(policy, plain, watched, use_remove_padding):
    engine, seqs = tiny.build(policy, use_remove_padding=use_remove_padding), tiny.near(plain, tiny.sequences())
    done = tiny.update(engine, tiny.actor_config(), tiny.as_data(seqs, use_remove_padding=use_remove_padding))
    tables, openings = watched(engine)
    found, step = values_of(tables["step_metric"], 1), as_oracle(plain, seqs)

    for name, formula in FORMULAS.items():
        assert found[name] == pytest.approx(formula(step), rel=2e-4, abs=2e-5), name
    assert found["trainer/actor/grad_norm"] == done.metrics["grad_norm"][0]
    assert found["trainer/update"] == 1
    assert openings[0]["trainer"] == "verl"
    assert openings[0]["settings"]["group_size"] == tiny.GROUP


def test_tokens_have_their_ids_and_candidates(policy, plain, watched):
    engine, seqs = tiny.build(policy), tiny.near(plain, tiny.sequences())
    tiny.update(engine, tiny.actor_config(), tiny.as_data(seqs))
    tables, _ = watched(engine)
    step = as_oracle(plain, seqs)
    tokens = tables["token"]

    assert sorted(tokens.token_id) == sorted(i for r in step for i in r["ids"])
    assert sorted(tokens.entropy) == pytest.approx(sorted(h for r in step for h in r["entropy"]), abs=1e-4)
    assert len(tables["sequence"]) == len(step)


def test_the_trainer_before_v1_sends_padded_tensors_and_the_numbers_are_the_same(policy, plain, watched, monkeypatch):
    seqs = tiny.near(plain, tiny.sequences())
    engines = [tiny.build(policy) for _ in range(2)]
    for engine, data, run in zip(engines, (tiny.as_data(seqs), tiny.as_padded_data(seqs)), ("jagged", "padded")):
        monkeypatch.setenv("ENTROSTAT_RUN", run)
        tiny.update(engine, tiny.actor_config(), data)
    tables, openings = [watched(engine) for engine in engines][-1]

    assert {o["run_id"] for o in openings} == {"jagged", "padded"}
    rows = tables["step_metric"].groupby("name")
    for name in FORMULAS:
        first, second = (json.loads(json.dumps(list(s))) for s in rows.get_group(name).state)
        assert first == pytest.approx(second, rel=1e-4, abs=1e-5), name


def test_in_bypass_mode_the_old_log_probs_are_the_engines_so_no_mismatch_is_told(policy, watched):
    engine = tiny.build(policy)
    run = begun(engine, tiny.actor_config(loss_mode="bypass_mode"))
    columns = engine_run.columns_of(tiny.as_data(tiny.sequences()), run._is_bypass)
    run.close(0.0)

    assert columns.rollout_logp is None


def test_a_run_that_resumed_goes_on_counting(policy, watched):
    engine, config = tiny.build(policy), tiny.actor_config()
    for seed in range(2):
        tiny.update(engine, config, tiny.as_data(tiny.sequences(seed)))
    engine.__dict__.pop(taps.RUN).close(0.0)

    tiny.update(engine, config, tiny.as_data(tiny.sequences(2)))
    tables, openings = watched(engine)

    assert [o["resume_step"] for o in openings] == [None, 2]
    assert sorted(tables["step_metric"].step.unique()) == [1, 2, 3]
    assert sorted(tables["step_metric"].query("name == 'trainer/update'").state.map(lambda s: s[0])) == [1, 2, 3]


# What is switched on --------------------------------------------------------------------------------------------------

ACTIVE = {
    "kl_cov": {"k": 0.1, "beta": 0.5},
    "clip_cov": {"r": 1.0, "w_low": 0.02, "w_high": 5.0},  # a share of 1 takes every candidate: nothing is drawn
    "casp": {"a": 0.2, "tau": 0.5},
    "iac": {},
    "ppl_shaping": {"alpha": 0.3},
    "position_shaping": {},
    "clip_higher": {"eps_low": 0.05, "eps_high": 0.1},
    "entropy_bonus": {"c": 0.2},
    "entropy_advantage": {},
    "forking_tokens": {"share": 0.5},
    "psr": {},
    "nsr": {},
    "w_reinforce": {},
}
SETS = {name: {name: params} for name, params in ACTIVE.items()} | {
    "kl_cov without clip": {"kl_cov": {"k": 0.2, "beta": 0.7, "clip": False}},
    "several": {
        "casp": {"a": 0.2, "tau": 0.5}, "clip_higher": {"eps_high": 0.4}, "forking_tokens": {"share": 0.6},
        "entropy_bonus": {"c": 0.1}, "position_shaping": {}, "iac": {},
    },
}  # fmt: skip


def facts(seqs):
    """What each response's whole group says, response by response."""
    others, z = [], []
    of_group = {uid: [i for i, u in enumerate(seqs.uids) if u == uid] for uid in seqs.uids}
    ln_ppl = [-float(old.double()[mask != 0].mean()) for old, mask in zip(seqs.old, seqs.masks, strict=True)]
    for i, uid in enumerate(seqs.uids):
        others.append(sum(float(seqs.advantages[j][0]) <= 0 for j in of_group[uid]))
        values = [ln_ppl[j] for j in of_group[uid]]
        z.append((ln_ppl[i] - np.mean(values)) / np.std(values))
    return GroupFacts(torch.tensor(others), torch.tensor(z))


def plain_gradients(plain, seqs, active, config):
    """Gradients of our plain loss on the plain model's full logits, micro-batch by micro-batch as verl cuts them."""
    model, states, whole = plain, {}, facts(seqs)
    model.zero_grad()
    num_tokens = sum(int(m.sum()) for m in seqs.masks)
    for first in range(0, len(seqs.responses), 4):
        rows = range(first, first + 4)
        logps = [tiny.logits_of(model, seqs, i).log_softmax(-1) for i in rows]
        lists = {
            "logp": [x.gather(1, seqs.responses[i].unsqueeze(1)).squeeze(1) for i, x in zip(rows, logps)],
            "entropy": [-(x.exp() * x).sum(1) for x in logps],
            "top": [x.sort(1, descending=True).values[:, :CANDIDATES] for x in logps],
            "is_top1": [x.argmax(1) == seqs.responses[i] for i, x in zip(rows, logps)],
            "mask": [seqs.masks[i] for i in rows],
            "advantages": [seqs.advantages[i].double() for i in rows],
            "old": [seqs.old[i].double() for i in rows],
        }
        has = {k: torch.nn.utils.rnn.pad_sequence(v, batch_first=True) for k, v in lists.items()}
        eps_low, eps_high = acting.clip_range(config)
        result = policy_loss(
            has["logp"], has["advantages"], has["mask"], old_logp=has["old"], transforms=chain(active), states=states,
            eps_low=eps_low, eps_high=eps_high, aggregation="fixed", normaliser=num_tokens, entropy=has["entropy"],
            top_logps=has["top"], is_top1=has["is_top1"], groups=torch.zeros(4),
            facts=GroupFacts(whole.num_others[first : first + 4], whole.ln_ppl_z[first : first + 4]),
        )  # fmt: skip
        states = result.states
        result.loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def difference(found, wanted):
    """The largest difference of any gradient, over the largest gradient."""
    largest = max(g.abs().max() for g in wanted.values())
    return max(float((found[n].double() - wanted[n]).abs().max() / largest) for n in wanted)


@pytest.mark.parametrize("use_remove_padding", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", SETS)
def test_an_update_is_that_of_the_plain_policy_loss(
    policy, plain, watched, monkeypatch, note_difference, name, use_remove_padding
):
    monkeypatch.setenv("ENTROSTAT_MODE", "act")
    # The server is silent: what the test puts up stays.
    monkeypatch.setattr(engine_run, "switch", lambda *args: None)
    engine, seqs = tiny.build(policy, use_remove_padding=use_remove_padding), tiny.near(plain, tiny.sequences())
    config = tiny.actor_config(**NO_DUAL_CLIP)
    run = begun(engine, config)
    switch_on(engine, **SETS[name])
    data = tiny.as_data(seqs, use_remove_padding=use_remove_padding)

    run.rollout(data)  # as verl's worker, before it cuts the rollout into mini-batches
    done = tiny.update(engine, config, data)
    watched(engine)

    apart = difference(done.gradients, plain_gradients(plain, seqs, SETS[name], config))
    note_difference(f"engine: {name}", apart)
    assert run.board.failure is None
    assert apart < 1e-4
    assert difference(done.gradients, plain_gradients(plain, seqs, {}, config)) > 1e-3
    assert "actor/entropy_loss" not in done.metrics


def test_the_plain_loss_is_verls_where_nothing_is_on(policy, plain):
    engine, seqs = tiny.build(policy), tiny.near(plain, tiny.sequences())
    config = tiny.actor_config(**NO_DUAL_CLIP)

    done = tiny.update(engine, config, tiny.as_data(seqs))

    assert difference(done.gradients, plain_gradients(plain, seqs, {}, config)) < 1e-4


def test_every_method_is_acted_on_or_refused_with_a_reason(policy):
    cannot = acting.refusals(tiny.actor_config(), tiny.build(policy))

    names = {m.name for m in (*METHODS, *SAMPLING, *LEVERS)}
    assert names == set(ACTIVE) | set(cannot) | {"learning_rate", "pause"}
    assert not set(ACTIVE) & set(cannot)
    assert all(len(reason) > 20 for reason in cannot.values())


def test_what_the_server_wants_is_put_up_between_two_steps_and_told(policy, watched, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_MODE", "act")
    monkeypatch.setenv("ENTROSTAT_ALLOW", "entropy_bonus,learning_rate")
    wants = [
        ActiveIntervention(name=n, params=p, by="rule:a", because="a test")
        for n, p in (("entropy_bonus", {"c": 0.1}), ("kl_cov", {}), ("learning_rate", {"factor": 0.5}))
    ]
    heard = DesiredState(version=1, interventions=wants)
    monkeypatch.setattr(Session, "intent", lambda self, waited_s=0.0: Intent(heard))
    engine = tiny.build(policy)
    engine.lr_scheduler_step = lambda: None  # verl's scheduler moves after the last mini-batch alone
    before = tiny.weights(engine)

    tiny.update(engine, tiny.actor_config(), tiny.as_data(tiny.sequences()))
    tables, _ = watched(engine)
    kinds = tables["event"].kind.tolist()
    refused = tables["event"].query("kind == 'intervention_refused'").iloc[0]

    assert kinds.count("intervention_on") == 2
    assert "kl_cov was refused: not allowed in this run" in refused.message
    # Adam's first step is the learning rate itself, wherever there is a gradient.
    moved = max(float((after - before[n]).abs().max()) for n, after in tiny.weights(engine).items())
    assert moved == pytest.approx(0.5 * 1e-2, rel=1e-3)
    assert engine.optimizer.param_groups[0]["lr"] == 1e-2


def test_allowing_what_verl_cannot_have_is_said_before_the_first_update(policy, watched, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_MODE", "act")
    monkeypatch.setenv("ENTROSTAT_ALLOW", "scope")
    engine = tiny.build(policy)
    before = tiny.weights(engine)

    with pytest.raises(AttachError, match="not the distribution"):
        tiny.update(engine, tiny.actor_config(), tiny.as_data(tiny.sequences()))

    assert all(torch.equal(before[n], w) for n, w in tiny.weights(engine).items())


def test_an_environment_that_cannot_be_read_is_said_before_the_first_update(policy, watched, monkeypatch):
    monkeypatch.setenv("ENTROSTAT_MODE", "acting")

    with pytest.raises(AttachError, match="ENTROSTAT_\\* of rank 0: mode='acting'"):
        tiny.update(tiny.build(policy), tiny.actor_config(), tiny.as_data(tiny.sequences()))


def test_another_loss_of_verls_is_watched_and_not_acted_on(policy, watched):
    engine, config = tiny.build(policy), tiny.actor_config(loss_mode="gspo")
    tiny.update(engine, config, tiny.as_data(tiny.sequences()))
    tables, openings = watched(engine)

    assert values_of(tables["step_metric"], 1)["entropy_mean"] > 0
    assert set(openings[0]["permissions"]["allow"]) == {"learning_rate", "pause"}
    assert "loss_mode=gspo" in openings[0]["settings"]["cannot"]["kl_cov"]


# Failures of ours -----------------------------------------------------------------------------------------------------


def test_a_probe_that_raises_is_an_event_and_training_goes_on(policy, watched, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("planted")

    config, data = tiny.actor_config(), tiny.as_data(tiny.sequences())
    monkeypatch.setattr(engine_run, "capture", broken)
    engine = tiny.build(policy)
    with caplog.at_level(logging.WARNING, "entrostat"):
        done = tiny.update(engine, config, data)
    tables, _ = watched(engine)
    taps.uninstall()
    alone = tiny.update(tiny.build(policy), config, data)

    assert done.losses == alone.losses
    assert all(torch.equal(done.gradients[n], alone.gradients[n]) for n in alone.gradients)
    assert "planted" in caplog.text
    assert tables["event"].query("kind == 'warning'").message.str.contains("planted").any()


def test_a_method_that_raises_is_taken_down_and_the_step_is_as_without_it(policy, watched, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("planted")

    config, data = tiny.actor_config(), tiny.as_data(tiny.sequences())
    engine = tiny.build(policy)
    run = begun(engine, config)
    switch_on(engine, entropy_bonus={"c": 0.2})
    monkeypatch.setattr(acting, "applied", broken)
    done = tiny.update(engine, config, data)
    watched(engine)
    taps.uninstall()
    alone = tiny.update(tiny.build(policy), config, data)

    assert run.board.failure == "RuntimeError: planted"
    assert run.board.transforms == ()
    # The first micro-batch went through verl's graph with the entropy in it, times a coefficient of 0.
    assert done.losses == alone.losses
    assert difference(done.gradients, {n: g.double() for n, g in alone.gradients.items()}) < 1e-6


def test_an_engine_that_is_not_read_is_an_error_in_the_log(caplog):
    taps._once.cache_clear()
    loss = partial(ppo_loss, config=tiny.actor_config())
    worker = types.SimpleNamespace(loss_fn=loss, engine=types.SimpleNamespace())

    assert taps._train_mini_batch(lambda data: "trained", worker, "data") == "trained"
    assert "a run with the engine SimpleNamespace is not recorded" in caplog.text


def test_a_session_that_cannot_begin_is_an_error_in_the_log_and_training_goes_on(policy, watched, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(taps, "Session", broken)
    engine = tiny.build(policy)
    done = tiny.update(engine, tiny.actor_config(), tiny.as_data(tiny.sequences()))

    assert getattr(engine, taps.RUN) is None
    assert math.isfinite(sum(done.losses))
    assert "this verl run is not recorded: rank 0: OSError: no space left" in caplog.text


def test_without_logits_and_entropies_it_is_said_what_to_set(policy, watched, monkeypatch):
    monkeypatch.setattr(acting, "why_no_logits", lambda engine: "with use_fused_kernels there are no logits")
    monkeypatch.setattr(engine_run, "logits_of", lambda *args: None)
    engine = tiny.build(policy)
    tiny.update(engine, tiny.actor_config(), tiny.as_data(tiny.sequences()))
    tables, openings = watched(engine)

    assert tables["event"].message.str.contains("actor.calculate_entropy=True").any()
    assert "entropy_mean" not in set(tables["step_metric"].name)
    assert "no candidates" in openings[0]["settings"]["cannot"]["casp"]


def test_without_logits_entropies_of_verls_own_are_recorded(policy, plain, watched, monkeypatch):
    monkeypatch.setattr(engine_run, "logits_of", lambda *args: None)
    engine, seqs = tiny.build(policy), tiny.near(plain, tiny.sequences())
    tiny.update(engine, tiny.actor_config(), tiny.as_data(seqs, calculate_entropy=True))
    tables, _ = watched(engine)
    found, step = values_of(tables["step_metric"], 1), as_oracle(plain, seqs)

    assert found["entropy_mean"] == pytest.approx(oracle.entropy_mean(step), rel=1e-4)
    assert "rank_logp_2" not in found


# Hooks ----------------------------------------------------------------------------------------------------------------


def test_a_hook_that_has_moved_is_named_with_the_versions_and_the_way_out(monkeypatch):
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_step", lambda self, batch, forward_only: None)

    with pytest.raises(AttachError) as raised:
        taps.install()

    said = str(raised.value)
    for part in ("verl 0.9.1", "forward_step", "'batch'", "knows verl 0.9", "update entrostat"):
        assert part in said


def test_the_taps_go_in_once_and_come_out():
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    before = FSDPEngineWithLMHead.train_batch
    taps.install()
    once = FSDPEngineWithLMHead.train_batch
    taps.install()

    assert FSDPEngineWithLMHead.train_batch is once is not before
    taps.uninstall()
    assert FSDPEngineWithLMHead.train_batch is before


def test_verls_distillation_loss_is_not_taken_for_its_policy_loss(caplog):
    from verl.trainer.distillation import distillation_ppo_loss

    taps._once.cache_clear()
    assert taps._actor_config(partial(distillation_ppo_loss, config=object())) is None
    assert "distillation_ppo_loss is not recorded" in caplog.text
