"""What a prompt's whole group says. verl spreads it over ranks and mini-batches, so it is asked before they are cut.

One gathering of a few numbers a response, once a rollout; verl itself gathers the lengths once a mini-batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from entrostat.interventions.iac import num_others
from entrostat.interventions.ppl_shaping import ln_ppl, z_in_group
from entrostat.interventions.transform import GroupFacts
from entrostat.trainer_adapters.verl.micro_batch import Columns

_OTHERS, _LN_PPL_Z = "entrostat_others", "entrostat_ln_ppl_z"


@dataclass(frozen=True, slots=True)
class Groups:
    """The responses of a rollout, [R] each, on the host; of one rank, or of all ranks one after the other.

    Args:
        prompt: int64, the same number for responses to the same prompt.
        is_gain: bool, the advantage is above 0; of the response's first token, where they differ.
        ln_ppl: minus the mean log-prob under the policy before the updates.
        has_tokens: bool, at least one token is trained on.
        reward: total score; None where verl sent none.
        first: where this rank's begin; ``num`` how many they are.
        num: see ``first``.
    """

    prompt: Tensor
    is_gain: Tensor
    ln_ppl: Tensor
    has_tokens: Tensor
    reward: Tensor | None
    first: int = 0
    num: int = 0

    def facts(self) -> GroupFacts:
        """What the groups say of this rank's own responses."""
        mine = slice(self.first, self.first + self.num)
        others = num_others(self.is_gain, self.prompt)
        ln_ppl_z = z_in_group(self.ln_ppl, self.prompt, self.has_tokens)
        return GroupFacts(others[mine], ln_ppl_z[mine])


@torch.no_grad()
def own(columns: Columns) -> Groups | None:
    """This rank's part; None where verl sent no ``uid``."""
    if columns.prompt is None:
        return None
    first = columns.mask.int().argmax(dim=1, keepdim=True)
    return Groups(
        prompt=columns.prompt.cpu(),
        is_gain=(columns.advantages.gather(1, first).squeeze(1) > 0).cpu(),
        ln_ppl=ln_ppl(columns.old_logp, columns.mask).double().cpu(),
        has_tokens=columns.mask.any(dim=1).cpu(),
        reward=None if columns.reward is None else columns.reward.double().cpu(),
    )


def gathered(mine: Groups | None) -> Groups | None:
    """All ranks' parts as one; every rank must come here, with None where it has nothing of its own to say.

    None where no rank has anything.
    """
    parts: list[Groups | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, mine)
    present = [part for part in parts if part is not None]
    if not present:
        return None
    before = [part for part in parts[: torch.distributed.get_rank()] if part is not None]
    rewards = [part.reward for part in present if part.reward is not None]
    return Groups(
        prompt=torch.cat([part.prompt for part in present]),
        is_gain=torch.cat([part.is_gain for part in present]),
        ln_ppl=torch.cat([part.ln_ppl for part in present]),
        has_tokens=torch.cat([part.has_tokens for part in present]),
        reward=torch.cat(rewards) if len(rewards) == len(present) else None,
        first=sum(len(part.prompt) for part in before),
        num=0 if mine is None else len(mine.prompt),
    )


def write(data: Any, facts: GroupFacts) -> None:
    """Put the facts beside verl's columns: they are cut and shuffled with the rest."""
    device = data["response_mask"].device
    assert facts.num_others is not None
    assert facts.ln_ppl_z is not None
    data[_OTHERS] = facts.num_others.to(device)
    data[_LN_PPL_Z] = facts.ln_ppl_z.to(device)


def read(data: Any) -> GroupFacts:
    """The facts of a micro-batch, [B]; None where the rollout's groups were not asked."""
    return GroupFacts(data.get(_OTHERS, None), data.get(_LN_PPL_Z, None))
