"""Which kernel runs, and what happens when it fails."""

import logging

import pytest
import torch

from entrostat.probe.kernels import choice
from entrostat.probe.kernels.choice import MIN_LOGITS, SWITCH, Kernel, attempt, chosen

ROW = torch.zeros(1, 4)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(choice, "_failed", set())


def test_large_work_on_a_cpu_is_compiled_and_small_work_is_not():
    assert chosen(ROW, MIN_LOGITS, 8) is Kernel.COMPILED
    assert chosen(ROW, MIN_LOGITS - 1, 8) is Kernel.PLAIN


@pytest.mark.parametrize(
    ("value", "small", "large"),
    [
        ("plain", Kernel.PLAIN, Kernel.PLAIN),
        ("compiled", Kernel.COMPILED, Kernel.COMPILED),
        ("auto", Kernel.PLAIN, Kernel.COMPILED),
        ("", Kernel.PLAIN, Kernel.COMPILED),
        ("triton", Kernel.PLAIN, Kernel.COMPILED),  # of a GPU: on a CPU it says nothing
    ],
)
def test_the_switch_asks_for_one(monkeypatch, value, small, large):
    monkeypatch.setenv(SWITCH, value)

    assert chosen(ROW, 4, 8) is small
    assert chosen(ROW, MIN_LOGITS, 8) is large


def test_a_switch_that_is_neither_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(SWITCH, "fast")
    with pytest.raises(ValueError, match="ENTROSTAT_KERNEL='fast': it must be one of plain, compiled, triton"):
        chosen(ROW, 4, 8)


class Own(torch.Tensor):
    """As DTensor is, or a quantised tensor."""


@pytest.mark.parametrize("like", [ROW.double(), ROW.to("meta"), ROW.as_subclass(Own)], ids=["f64", "meta", "subclass"])
def test_what_cannot_be_compiled_is_plain_whatever_is_asked(monkeypatch, like):
    monkeypatch.setenv(SWITCH, "compiled")
    assert chosen(like, MIN_LOGITS, 8) is Kernel.PLAIN


def test_no_logits_are_plain(monkeypatch):
    monkeypatch.setenv(SWITCH, "compiled")
    assert chosen(ROW, 0, 8) is Kernel.PLAIN


def fails(error):
    def form():
        raise error

    return form


def test_a_kernel_that_fails_is_replaced_for_good_and_said_once(caplog):
    forms = {Kernel.COMPILED: fails(RuntimeError("no g++\nsecond line")), Kernel.PLAIN: lambda: "plain"}
    with caplog.at_level(logging.WARNING, "entrostat"):
        assert attempt(chosen(ROW, MIN_LOGITS, 8), forms) == "plain"
        assert attempt(Kernel.COMPILED, forms) == "plain"

    assert chosen(ROW, MIN_LOGITS, 8) is Kernel.PLAIN
    assert len(caplog.messages) == 1
    assert "RuntimeError: no g++" in caplog.text
    assert "second line" not in caplog.text


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("12 GiB"), KeyboardInterrupt()])
def test_no_memory_and_an_interrupt_are_the_callers_to_see(error):
    with pytest.raises(type(error)):
        attempt(Kernel.COMPILED, {Kernel.COMPILED: fails(error), Kernel.PLAIN: lambda: "plain"})
    assert choice._failed == set()
