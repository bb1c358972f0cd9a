"""The compiled form on a CPU: the plain one's cases, uncompiled and compiled; and when it compiles."""

import logging
import math
import threading

import pytest
import torch
from support.kernel_cases import INF, Case, cases, different, drawn, errors, too_large
from support.patience import PATIENCE_S

from entrostat.probe.kernels import choice, cpu
from entrostat.probe.kernels.choice import SWITCH
from entrostat.probe.token_stats import TokenStats, from_hidden, from_logits

CASES = {case.name: case for case in cases() if not case.options}
WIDTH, N = 1003, 3  # one width, odd, and few candidates: each shape is a compilation of seconds


@pytest.fixture(autouse=True)
def asked_for(monkeypatch):
    """A form that fails must not pass as plain."""
    monkeypatch.setenv(SWITCH, "compiled")
    monkeypatch.setattr(choice, "_failed", set())


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(cpu, "_compiled", cpu._uncompiled)
    monkeypatch.setattr(cpu, "_ready", {})
    monkeypatch.setattr(cpu, "_begun", set())


def measured(logits, labels, **options) -> TokenStats:
    stats = from_logits(logits, labels, **options)
    assert choice._failed == set()
    return stats


def oracles(case):
    """Soft-capped logits crowd at the cap: float32 tells fewer of them apart, so the oracle gets float32's."""
    transform = dict(case.transform)
    if "softcap" not in transform:
        return case.logits, transform
    cap, scale, heat = transform["softcap"], transform.get("logit_scale", 1.0), transform.get("temperature", 1.0)
    z = case.logits.float() * scale
    return torch.where(z.isinf(), z, cap * torch.tanh(z / cap)) / heat, {}


def assert_right(case):
    stats = measured(case.logits, case.labels, n=case.n, **case.transform)
    logits, transform = oracles(case)
    assert too_large(errors(stats, logits, case.labels, case.n, **transform)) == {}


@pytest.mark.parametrize("kernel", ["plain", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_every_statistic_is_its_formula_before_it_is_compiled(uncompiled, monkeypatch, name, kernel):
    monkeypatch.setenv(SWITCH, kernel)
    assert_right(CASES[name])


def hard_rows(dtype):
    """More rows than one compiled call takes, with everything in them that goes wrong easily."""
    logits, labels = drawn(70, WIDTH, dtype=dtype)
    logits[1, 60:], logits[2, :700], logits[3, ::2], logits[4, 2:] = -INF, -INF, -INF, -INF
    logits[5, WIDTH - 1], logits[6] = -INF, -INF
    logits[7, 150], logits[8, 3], logits[9, WIDTH - 1] = math.nan, INF, math.nan
    logits[10], labels[10], labels[11], labels[12] = math.nan, -100, WIDTH, -1
    logits[13:15] = logits[13:15].float().round().clamp(-2, 2).to(dtype)
    logits[15], labels[15] = 0.0, 1
    logits[16], logits[16, 5], labels[16] = -1.0, -0.0, 6
    logits[16, 9], logits[16, 6] = 0.0, 0.0  # as likely as -0.0
    logits[17], logits[18], logits[19] = logits[17] - 300, logits[18] + 60, logits[19] + 300
    labels[1], labels[3], labels[4], labels[5] = 200, 3, 1, WIDTH - 1  # three of them masked
    return logits, labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_it_is_the_formula_too(dtype):
    assert_right(Case("hard", *hard_rows(dtype), n=N))


def test_compiled_with_every_transform():
    logits, labels = hard_rows(torch.bfloat16)
    transform = {"temperature": torch.linspace(0.5, 2.0, 70), "softcap": 20.0, "logit_scale": 0.5}
    case = Case("transformed", logits, labels, N, transform)
    heat = transform["temperature"][:, None]
    tempered, _ = oracles(Case("", logits, labels, N, transform | {"temperature": heat}))

    stats = measured(logits, labels, n=N, **case.transform)

    assert too_large(errors(stats, tempered, labels, N)) == {}
    spoilt = transform["temperature"].clone()
    spoilt[20], spoilt[21] = 0.0, -1.0
    other = measured(logits, labels, n=N, **transform | {"temperature": spoilt})
    assert other.entropy[20:22].isnan().all()
    assert other.num_finite[20:22].tolist() == [0, 0]
    assert different(stats, TokenStats(*(getattr(other, k)[22:] for k in TokenStats.__dataclass_fields__)),
                     slice(22, None)) == []  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_of_a_row_do_not_depend_on_the_batch(dtype):
    logits, labels = hard_rows(dtype)
    together = measured(logits, labels, n=N)

    for rows in (slice(0, 1), slice(7, 9), slice(3, 67), slice(13, 70)):
        assert different(together, measured(logits[rows], labels[rows], n=N), rows) == []


def test_from_hidden_is_from_the_logits_of_the_head():
    generator = torch.Generator().manual_seed(1)
    hidden, head = torch.randn(70, 16, generator=generator), torch.randn(2500, 16, generator=generator)
    bias, labels = torch.randn(2500, generator=generator), torch.randint(2500, (70,), generator=generator)
    labels[0], labels[1] = 2500, 2499  # within the last tile's filling, and before it

    stats = from_hidden(hidden, head, labels, bias=bias, n=N, row_tile=66, vocab_tile=WIDTH)

    assert choice._failed == set()
    logits = hidden.double() @ head.double().T + bias.double()
    exact = from_logits(logits, labels, n=N)
    for name in ("entropy", "logsumexp", "sum_p2", "top_logps", "self_certainty"):
        assert torch.allclose(getattr(stats, name).double(), getattr(exact, name), rtol=3e-6, atol=3e-6), name
    assert stats.logp.isnan().nonzero().tolist() == [[0]]
    for name in ("top_ids", "rank", "support95", "num_finite"):
        assert torch.equal(getattr(stats, name), getattr(exact, name)), name


def test_settings_of_torch_compile_are_the_users_own():
    before = torch._inductor.config.get_config_copy(), torch._dynamo.config.get_config_copy()
    measured(*drawn(3, WIDTH), n=N)

    assert (torch._inductor.config.get_config_copy(), torch._dynamo.config.get_config_copy()) == before


@pytest.fixture
def compilations(monkeypatch):
    """What would be compiled, as it would be handed over."""
    seen = []

    def as_it_is(function, **_):
        seen.append(function)
        return function

    monkeypatch.setattr(cpu, "_ready", {})
    monkeypatch.setattr(cpu, "_begun", set())
    monkeypatch.setattr(torch, "compile", as_it_is)
    return seen


def test_no_batch_size_compiles_anything(compilations):
    logits, labels = drawn(200, 90)
    for rows in (1, 2, 63, 64, 65, 127, 200):
        measured(logits[:rows], labels[:rows])
        measured(logits[:rows].requires_grad_(), labels[:rows], temperature=torch.ones(rows))

    assert len(compilations) == 1


def test_each_shape_has_a_code_object_of_its_own(compilations):
    """Dynamo gives up at the eighth recompilation of one."""
    for vocab in range(60, 72):
        measured(*drawn(3, vocab))

    assert len({function.__code__ for function in compilations}) == 12


def test_while_one_thread_compiles_another_goes_on(compilations, monkeypatch):
    has_begun, may_end, found = threading.Event(), threading.Event(), []

    def slow(function, **_):
        has_begun.set()
        assert may_end.wait(PATIENCE_S)
        return function

    monkeypatch.setattr(torch, "compile", slow)
    logits, labels = drawn(5, 80)
    first = threading.Thread(target=lambda: found.append(measured(logits, labels)))
    first.start()
    assert has_begun.wait(PATIENCE_S)
    meanwhile = measured(logits, labels)
    assert first.is_alive()
    may_end.set()
    first.join(20)

    assert different(meanwhile, found[0]) == []


def test_without_a_compiler_it_is_plain_and_says_so_once(monkeypatch, caplog):
    def missing():
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch._inductor.cpp_builder, "get_cpp_compiler", missing)
    logits, labels = drawn(5, 77)
    with torch._inductor.config.patch(force_disable_caches=True), caplog.at_level(logging.WARNING, "entrostat"):
        stats = from_logits(logits, labels)
        again = from_logits(logits, labels)

    assert len([m for m in caplog.messages if "the plain one takes its place" in m]) == 1
    monkeypatch.setenv(SWITCH, "plain")
    assert different(stats, from_logits(logits, labels)) == different(stats, again) == []


def test_inside_a_users_compiled_function_it_is_plain():
    logits, labels = drawn(5, 78)
    inside = torch.compile(lambda: from_logits(logits, labels), backend="eager")()

    assert not any(shape.columns == 78 for shape in cpu._begun)
    assert torch.allclose(inside.entropy, from_logits(logits.double(), labels).entropy.float(), rtol=2e-6)
