"""The smallest complete loop with a probe: REINFORCE on a bandit of letters, in plain torch.

entrostat up &            # or nothing: then it spools to disk
python examples/plain_loop.py
"""

import torch

import entrostat

PROMPTS, GROUP, LETTERS, WIDTH = 4, 8, 26, 16


def main(steps: int = 50) -> str:
    """Train; returns the run's name. Every letter before 'e' is right: there are many right answers."""
    torch.manual_seed(0)
    embed = torch.nn.Embedding(PROMPTS, WIDTH)
    head = torch.nn.Linear(WIDTH, LETTERS, bias=False)
    optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=0.05)
    groups = torch.arange(PROMPTS).repeat_interleave(GROUP)  # [32] the prompt of each response
    mask = torch.ones(len(groups), 1)

    with entrostat.Probe(group_size=GROUP, config={"lr": 0.05}) as probe:
        for step in range(1, steps + 1):
            hidden = embed(groups).unsqueeze(1)  # [32, 1, WIDTH]: responses of one token
            logps = head(hidden).log_softmax(-1)
            labels = torch.distributions.Categorical(logits=logps.detach()).sample()
            rewards = (labels < 5).float().squeeze(1)
            advantages = rewards - rewards.view(PROMPTS, GROUP).mean(1).repeat_interleave(GROUP)

            probe.observe(
                hidden=hidden, head=head.weight, labels=labels, mask=mask,
                advantages=advantages, groups=groups, rewards=rewards,
            )  # fmt: skip
            loss = -(advantages.unsqueeze(1) * logps.gather(-1, labels.unsqueeze(-1)).squeeze(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.end_step(step, metrics={"loss": loss.item()})
        return probe.run_id


if __name__ == "__main__":
    print(main())
