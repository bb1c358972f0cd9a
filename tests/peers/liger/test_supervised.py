"""Liger's own fused cross-entropy, which gives a loss and no logits, watched in transformers' Trainer.

Liger's kernels run on a GPU, or slowly anywhere in Triton's interpreter, so this needs an environment of its own: the
trainers' packages, and ``pip install --no-deps liger-kernel==0.8.5 triton==3.5.0 numpy==2.2.6`` (the interpreter of
that Triton fails with numpy 2.4). Then ``OMP_NUM_THREADS=1 python -P -m pytest tests/peers/liger``.
"""

import pytest
import torch
from support import tiny_sft
from support.spool import spooled, values_of

import entrostat

FUSED_LOSS = {
    "rope": False, "rms_norm": False, "swiglu": False, "cross_entropy": False, "fused_linear_cross_entropy": True,
}  # fmt: skip


def test_with_ligers_fused_loss_no_weight_changes_and_the_signals_are_those_of_the_logits(tmp_path):
    found, weights, has_logits = {}, {}, []
    for kind in ("alone", "watched", "logits"):
        settings = {} if kind == "logits" else {"use_liger_kernel": True, "liger_kernel_config": FUSED_LOSS}
        trainer = tiny_sft.plain(tmp_path / kind, **settings)
        if kind != "alone":
            entrostat.attach(trainer, url="http://127.0.0.1:9", directory=tmp_path / f"{kind}-spool")
        if kind == "watched":
            observe = trainer._entrostat_handle.boundary.tap._observe

            def listening(batch, hidden, output, observe=observe):
                has_logits.append(output.logits is not None)
                observe(batch, hidden, output)

            trainer._entrostat_handle.boundary.tap._observe = listening
        trainer.train()
        weights[kind] = [p.detach().clone() for p in trainer.model.parameters()]
        if kind != "alone":
            found[kind] = values_of(spooled(tmp_path / f"{kind}-spool")[0]["step_metric"], 1)

    assert has_logits == [False, False]
    assert all(torch.equal(a, b) for a, b in zip(weights["alone"], weights["watched"], strict=True))
    for name in ("entropy_mean", "sample_logp", "ppl", "rank_logp_1", "rank_logp_2", "top1_rate", "self_certainty"):
        assert found["watched"][name] == pytest.approx(found["logits"][name], rel=1e-5)
