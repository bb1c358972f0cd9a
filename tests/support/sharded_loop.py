"""GRPO in a loop of one's own on fixed rollouts: in one process, or over several with DDP or FSDP2.

``torchrun --nproc_per_node 2 sharded_loop.py OUT URL JOBS``; JOBS is a JSON list of arguments of ``train``, done one by
one. Every process trains its share of the same 16 responses a step, in micro-batches of 4. What rank 0 writes to
``OUT/RUN.pt``: each step's loss and whole gradients, and whether the head was sharded when it was observed.
"""

import json
import os
import sys
import uuid
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

STEPS, RESPONSES, GROUP, TOKENS, MICRO_BATCH, WORDS = 3, 16, 4, 6, 4, 22


def model():
    """Qwen2, two layers of 32, random weights."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
        )
    )  # fmt: skip


def rollout(step):
    """The responses of a step, whatever process asks."""
    generator = torch.Generator().manual_seed(step)
    # Of different lengths: a mean of the micro-batches' or the ranks' means is another number.
    length = torch.randint(1, TOKENS + 1, (RESPONSES,), generator=generator)
    rewards = torch.randint(0, 2, (RESPONSES,), generator=generator).float()
    by_group = rewards.view(-1, GROUP)
    spread = by_group.std(1, keepdim=True) + 1e-4
    return {
        "ids": torch.randint(0, WORDS, (RESPONSES, 1 + TOKENS), generator=generator),
        "mask": (torch.arange(TOKENS) < length[:, None]).long(), "rewards": rewards,
        "groups": torch.arange(RESPONSES) // GROUP + step * RESPONSES,
        "advantages": ((by_group - by_group.mean(1, keepdim=True)) / spread).view(-1),
        "since": torch.randn(RESPONSES, TOKENS, generator=generator) * 0.2,
        "mismatch": torch.randn(RESPONSES, TOKENS, generator=generator) * 0.1,
    }  # fmt: skip


def wrapped(policy, how):
    """``fsdp``: the head on its own, sharded again after its forward; ``fsdp_root``: whole until the backward."""
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(policy)
    if how.startswith("fsdp"):
        own = [policy.lm_head] if how == "fsdp" else []
        for module in [*policy.model.layers, *own, policy]:
            fully_shard(module)
    return policy


def forward(policy, ids):
    """Hidden states, log-probs and entropies of the response tokens, all with gradient."""
    out = policy(ids, output_hidden_states=True)
    logps = out.logits[:, :-1].log_softmax(-1)
    logp = logps.gather(2, ids[:, 1:, None]).squeeze(2)
    return out.hidden_states[-1][:, :-1], logp, -(logps.exp() * logps).sum(2)


def gradients(policy):
    """Name -> whole gradient; a collective under FSDP2."""
    grads = {name.removeprefix("module."): p.grad for name, p in policy.named_parameters()}
    return {name: g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for name, g in grads.items()}


def train(out, url, run, how="plain", methods=None, broken=None, micro_batch=MICRO_BATCH):
    """Train three steps.

    Args:
        how: plain, ddp, fsdp or fsdp_root.
        methods: name -> parameters, on from the start.
        broken: what fails on rank 1: ``url``, nobody answers there; ``spool``, its directory cannot be used.
        micro_batch: responses in each.
    """
    import entrostat
    from entrostat.interventions.chain import chain

    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    session, spool = [uuid.uuid4().hex], f"{out}/spool-{run}-{rank}"
    if num_ranks > 1:
        dist.broadcast_object_list(session, src=0)
    if broken == "url" and rank == 1:
        url = "http://127.0.0.1:9"
    if broken == "spool" and rank == 1:
        Path(spool).write_text("a file, where the directory should be")
    policy = wrapped(model(), how)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    head = (policy.module if how == "ddp" else policy).lm_head
    local = RESPONSES // num_ranks
    mine = torch.arange(rank * local, (rank + 1) * local).split(micro_batch)
    trace, was_sharded = [], set()
    with entrostat.Probe(
        run, url=url, directory=spool, rank=rank, world_size=num_ranks, session_id=session[0], group_size=GROUP
    ) as probe:
        for step in range(1, STEPS + 1):
            data = rollout(step)
            # Gradients are averaged over ranks: so much makes every token of the step count the same.
            normaliser = int(data["mask"].sum()) / num_ranks
            optimizer.zero_grad()
            total = torch.zeros(())
            for rows in mine:
                batch = {key: value[rows] for key, value in data.items()}
                hidden, logp, entropy = forward(policy, batch["ids"])
                was_sharded.add(hasattr(head.weight, "full_tensor"))
                old = logp.detach() + batch["since"]
                seen = probe.observe(
                    hidden=hidden, head=head.weight, labels=batch["ids"][:, 1:], mask=batch["mask"],
                    advantages=batch["advantages"], old_logps=old, rollout_logps=old + batch["mismatch"],
                    groups=batch["groups"], rewards=batch["rewards"], micro_batches=len(mine),
                )  # fmt: skip
                loss = probe.policy_loss(
                    logp, seen, old_logps=old, entropy=entropy, aggregation="fixed", normaliser=normaliser,
                    transforms=chain(methods or {}),
                )  # fmt: skip
                loss.backward()
                total += loss.detach() / num_ranks
            if num_ranks > 1:
                dist.all_reduce(total)
            trace.append({"loss": total.item(), "gradients": gradients(policy)})
            optimizer.step()
            probe.end_step(step, metrics={"loss": total.item()})
    if rank == 0:
        torch.save({"trace": trace, "was_sharded": was_sharded}, f"{out}/{run}.pt")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for job in json.loads(sys.argv[3]):
        train(sys.argv[1], sys.argv[2], **job)
    dist.destroy_process_group()
