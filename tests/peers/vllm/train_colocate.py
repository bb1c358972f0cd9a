"""A GRPO run with vLLM in the trainer's process, from a fresh interpreter; what it found comes out as JSON.

**Shim**: on the CPU vLLM repacks its linear weights when they are loaded and keeps no originals, so TRL's weight sync
has nothing to load into (``'Parameter' object has no attribute 'weight_loader'``). Here the layers keep them. And the
engine does not compile, which takes longer than the run.
"""

import functools
import json
import os
import sys
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1"}

import torch
import trl.generation.vllm_generation as vllm_generation
import vllm.model_executor.layers.utils as vllm_layers
from support import tiny_trl
from transformers import AutoModelForCausalLM

import entrostat
from entrostat.trainer_adapters.vllm.live import install, remove
from entrostat.trainer_adapters.vllm.rollout_probe import RolloutProbe
from entrostat.trainer_adapters.vllm.trl_rollouts import check_logprobs, name_steps, rollout_logprobs


def variety(completions, **_):
    """A reward that differs within each group from the first step on: the share of different words."""
    return [len(set(text.split())) / 8 for text in completions]


def keep_weights(layer, remove_weight):
    layer.cpu_linear = torch.nn.functional.linear


def train(folder: Path, with_ours: bool) -> dict:
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy")
    trainer = tiny_trl.trainer(
        folder,
        policy=policy,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=64,
        reward_funcs=variety,
    )
    llm, seen = trainer.vllm_generation.llm, []
    if with_ours:
        probe = RolloutProbe(n=3)
        made = install(llm, probe.processor)
        rollout_logprobs(trainer, 3, seen.append)
        name_steps(trainer)
        check_logprobs(trainer)
        generate, measured = llm.generate, []

        def generate_and_join(*args, **kwargs):
            outputs = generate(*args, **kwargs)
            measured.append((kwargs["sampling_params"].extra_args, probe.join(outputs)))
            return outputs

        llm.generate = generate_and_join
        entrostat.attach(trainer, run="colocate", url="http://127.0.0.1:9", directory=folder / "spool")
    trainer.train()
    found = {
        "log": [entry for entry in trainer.state.log_history if "loss" in entry],
        "weight": float(sum(p.double().abs().sum() for p in trainer.model.parameters())),
    }
    if with_ours:
        remove(llm, made)
        found |= {
            "failure": probe.failure, "steps": [extra for extra, _ in measured],
            "missing": [m.num_missing for _, m in measured],
            "entropy": [float(m.entropy[m.rows.mask].mean()) for _, m in measured],
            "top1_gap": [float((m.top_logps - m.rows.top_logps).abs().nan_to_num().max()) for _, m in measured],
            "num_listed": max(len(place) for listed in seen for row in listed.ids for place in row),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    vllm_layers.dispatch_cpu_unquantized_gemm = keep_weights
    vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True)
    target = Path(sys.argv[1])
    found = train(target, sys.argv[2] == "with")
    (target / f"{sys.argv[2]}.json").write_text(json.dumps(found))
