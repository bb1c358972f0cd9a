"""Chosen rows against the whole vocabulary: equal to full logits in float64, by value and by gradient."""

import pytest
import torch

from entrostat.probe import selected_rows
from entrostat.probe.selected_rows import Head, candidate_logps, kl_to_reference

D, V = 8, 13


def _inputs(k, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    head = Head(draw(V, D).requires_grad_(), draw(V).requires_grad_(), **options)
    other = Head(draw(V, D), None, **options)
    return draw(k, D).requires_grad_(), head, draw(k, D), other


def _full(hidden, head):
    """The same logits, written down once more."""
    z = hidden @ head.weight.T + (0 if head.bias is None else head.bias)
    z = z * (head.logit_scale or 1.0)
    if head.softcap:
        z = head.softcap * torch.tanh(z / head.softcap)
    return torch.log_softmax(z / head.temperature, -1)


def _gradients(value, *inputs):
    weight = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).view(value.shape)
    return torch.autograd.grad((value * weight).sum(), inputs)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"softcap": 3.0, "logit_scale": 0.5}])
@pytest.mark.parametrize("tile", [4, 512])
@pytest.mark.parametrize("k", [1, 11])
@pytest.mark.parametrize("forward", [False, True])
def test_kl_is_that_of_full_logits(options, tile, k, forward, monkeypatch):
    monkeypatch.setattr(selected_rows, "ROW_TILE", tile)
    hidden, head, other_hidden, other = _inputs(k, **options)

    found = kl_to_reference(hidden, head, other_hidden, other, forward=forward)

    p, q = _full(hidden, head), _full(other_hidden, other)
    expected = (q.exp() * (q - p)).sum(1) if forward else (p.exp() * (p - q)).sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    wanted = _gradients(expected, hidden, head.weight, head.bias)
    for mine, theirs in zip(_gradients(found, hidden, head.weight, head.bias), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tile", [4, 512])
def test_candidates_are_those_of_full_logits(tile, monkeypatch):
    monkeypatch.setattr(selected_rows, "ROW_TILE", tile)
    hidden, head, _, _ = _inputs(11, temperature=0.9)

    found = candidate_logps(hidden, head, 3)

    expected = _full(hidden, head).sort(1, descending=True).values[:, :3]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    wanted = _gradients(expected, hidden, head.weight, head.bias)
    for mine, theirs in zip(_gradients(found, hidden, head.weight, head.bias), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_no_rows_are_zero_and_still_in_the_graph():
    hidden, head, other_hidden, other = _inputs(5)

    nothing = kl_to_reference(hidden[:0], head, other_hidden[:0], other)

    assert nothing.shape == (0,)
    assert nothing.requires_grad


@pytest.mark.parametrize("forward", [False, True])
def test_a_masked_vocabulary_counts_nothing(forward):
    hidden, head, other_hidden, other = _inputs(3)
    banned = torch.zeros(V, dtype=torch.float64)
    banned[2] = -torch.inf
    head, other = Head(head.weight, banned), Head(other.weight, banned)

    found = kl_to_reference(hidden, head, other_hidden, other, forward=forward)
    (gradient,) = torch.autograd.grad(found.sum(), hidden)

    keep = [v for v in range(V) if v != 2]
    p = torch.log_softmax((hidden @ head.weight.T)[:, keep], -1)
    q = torch.log_softmax((other_hidden @ other.weight.T)[:, keep], -1)
    expected = (q.exp() * (q - p)).sum(1) if forward else (p.exp() * (p - q)).sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert gradient.isfinite().all()
