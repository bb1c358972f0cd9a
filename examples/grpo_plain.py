"""GRPO in one file, plain torch: sampling, group advantages, several updates a rollout, and a probe.

A small Qwen2 with random weights reads a letter and shall answer with one that comes later in the alphabet: there are
many right answers, and GRPO forgets most of them while its entropy falls.

    entrostat up &                               # or nothing: then it spools to disk
    python examples/grpo_plain.py                # watched; the loss is this file's own
    python examples/grpo_plain.py --ours         # probe.policy_loss: the same numbers, until something is switched on
    python examples/grpo_plain.py --ours --act    # and the page or a rule may switch it on
"""

import argparse

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

import entrostat

LETTERS = "abcdefghijklmnopqrstuvwxyz"
END, SIZE = len(LETTERS), len(LETTERS) + 1
PROMPTS, GROUP, MOST_TOKENS = 8, 8, 4  # a rollout: 8 prompts, 8 responses to each, up to 4 tokens
EPOCHS, MINI_BATCHES = 2, 2  # updates a rollout: 4
LEARNING_RATE, CLIP, TEMPERATURE = 3e-3, 0.2, 1.0


def decode(ids: list[int]) -> str:
    """Token ids as text."""
    return "".join(LETTERS[i] for i in ids if i < len(LETTERS))


def reward(prompt: int, response: str) -> float:
    """1 where the response begins with a letter that comes after the prompt's."""
    return float(response[:1] > LETTERS[prompt])


def policy(seed: int) -> Qwen2ForCausalLM:
    """Two layers, width 32, random weights."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(vocab_size=SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=2, max_position_embeddings=16, pad_token_id=END, eos_token_id=END)
    )  # fmt: skip


@torch.no_grad()
def sample(model: Qwen2ForCausalLM, prompts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ids [B, 1 + T]; which of the T are the response's, its end token too [B, T]; their log-probs [B, T]."""
    ids, said = prompts.unsqueeze(1), []
    for _ in range(MOST_TOKENS):
        logps = (model(ids).logits[:, -1] / TEMPERATURE).log_softmax(-1)
        token = torch.multinomial(logps.exp(), 1)
        said.append(logps.gather(1, token))
        ids = torch.cat([ids, token], 1)
    ended = (ids[:, 1:] == END).cumsum(1)
    return ids, (ended - (ids[:, 1:] == END).long()) == 0, torch.cat(said, 1)


def forward(model: Qwen2ForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What predicts each response token: hidden states [B, T, d], its log-prob [B, T], the entropy [B, T]."""
    hidden = model.model(ids).last_hidden_state[:, :-1]
    logps = (model.lm_head(hidden) / TEMPERATURE).log_softmax(-1)
    return hidden, logps.gather(2, ids[:, 1:, None]).squeeze(2), -(logps.exp() * logps).sum(2)


def own_loss(logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """PPO's clipped surrogate, mean over the tokens of the mini-batch."""
    ratio, advantage = (logp - old).exp(), advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return -(surrogate * mask).sum() / mask.sum()


def main(steps: int = 200, seed: int = 0, ours: bool = False, act: bool = False) -> list[float]:
    """Train for ``steps`` updates; returns their losses."""
    model, losses = policy(seed), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    probe = entrostat.Probe(
        group_size=GROUP, eps_low=CLIP, eps_high=CLIP, tokenizer=decode, mode="act" if act else "observe",
        config={"learning_rate": LEARNING_RATE, "seed": seed},
    )  # fmt: skip
    with probe:
        while len(losses) < steps and not probe.should_stop:
            groups = torch.randperm(25)[:PROMPTS].repeat_interleave(GROUP)  # a prompt is a letter, and names its group
            ids, mask, sampled_logp = sample(model, groups)
            texts = [decode(row[keep].tolist()) for row, keep in zip(ids[:, 1:], mask, strict=True)]
            rewards = torch.tensor([reward(int(p), text) for p, text in zip(groups, texts, strict=True)])
            by_group = rewards.view(PROMPTS, GROUP)
            spread = by_group.std(1, keepdim=True) + 1e-4
            advantages = ((by_group - by_group.mean(1, keepdim=True)) / spread).reshape(-1)
            with torch.no_grad():
                old = forward(model, ids)[1]

            for rows in torch.arange(len(ids)).chunk(MINI_BATCHES) * EPOCHS:  # groups stay whole
                hidden, logp, entropy = forward(model, ids[rows])
                seen = probe.observe(  # 1: what was computed
                    hidden=hidden, head=model.lm_head.weight, labels=ids[rows, 1:], mask=mask[rows],
                    advantages=advantages[rows], old_logps=old[rows], rollout_logps=sampled_logp[rows],
                    groups=groups[rows], rewards=rewards[rows], temperature=TEMPERATURE,
                )  # fmt: skip
                if ours:  # 2: the loss, with what is switched on
                    loss = probe.policy_loss(logp, seen, old_logps=old[rows], entropy=entropy)
                else:
                    loss = own_loss(logp, old[rows], advantages[rows], mask[rows])
                for group in optimizer.param_groups:
                    group["lr"] = LEARNING_RATE * probe.learning_rate_factor
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                probe.end_step(len(losses), metrics={"loss": losses[-1]})  # 3: the update is done
        print(f"{probe.run_id}: {len(losses)} updates, reward {rewards.mean():.2f} in the last rollout")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO in one file, with a probe.")
    parser.add_argument("--steps", type=int, default=200, help="updates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ours", action="store_true", help="probe.policy_loss in the place of this file's own")
    parser.add_argument("--act", action="store_true", help="what is switched on acts; needs --ours and a server")
    main(**vars(parser.parse_args()))
