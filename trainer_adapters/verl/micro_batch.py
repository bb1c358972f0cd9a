"""What a micro-batch of verl holds, as padded tensors: B responses, T positions.

verl keeps sequences packed: ``prompt + response`` after ``prompt + response``, nnz tokens in all, as jagged tensors
(the trainer v1) or as padded ones with an attention mask (the one before it). The response token at [b, t] is
predicted at one packed position, ``places[b, t]``; verl's own ``no_padding_2_padding`` says which.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from entrostat.probe.hashes import hash63
from entrostat.probe.token_stats import TokenStats, from_logits

_ROWS = 512  # logits of this many tokens are copied at a time: 512 x 150,000 floats are 300 MB
_REWARDS = ("token_level_scores", "rm_scores")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a micro-batch; None where verl did not send them.

    Args:
        token_ids: [B, T] responses.
        mask: [B, T] bool, the tokens of the loss.
        advantages: [B, T] as verl's estimator made them.
        old_logp: [B, T] under the policy before the updates.
        rollout_logp: [B, T] as the engine that sampled reported; None in bypass mode, where ``old_logp`` is it.
        reward: [B] total score of each response, before any KL penalty.
        prompt: [B] int64, the same number for responses to the same prompt, in every rank.
        prompt_ids: [B, P].
    """

    token_ids: Tensor
    mask: Tensor
    advantages: Tensor
    old_logp: Tensor
    rollout_logp: Tensor | None
    reward: Tensor | None
    prompt: Tensor | None
    prompt_ids: Tensor | None


def columns_of(data: Any, is_bypass: bool) -> Columns:
    """The columns of ``data``, the TensorDict that verl's loss is given.

    Raises:
        KeyError: without responses, mask, advantages or old log-probs there is no policy loss either.
    """
    device = data["response_mask"].device
    score = next((padded(data[name]) for name in _REWARDS if name in data.keys()), None)  # noqa: SIM118
    rollout = None if is_bypass or "rollout_log_probs" not in data.keys() else padded(data["rollout_log_probs"])  # noqa: SIM118
    return Columns(
        token_ids=padded(data["responses"]),
        mask=padded(data["response_mask"]) != 0,
        advantages=padded(data["advantages"]),
        old_logp=padded(data["old_log_probs"]),
        rollout_logp=rollout,
        reward=None if score is None else score.sum(1) if score.ndim == 2 else score,
        prompt=_prompt_numbers(data, device),
        prompt_ids=padded(data["prompts"], -1) if "prompts" in data.keys() else None,  # noqa: SIM118
    )


def padded(values: Tensor, padding: float = 0) -> Tensor:
    """[B, T] of a jagged tensor, padded on the right; a padded one as it is."""
    return torch.nested.to_padded_tensor(values, padding) if values.is_nested else values


def _prompt_numbers(data: Any, device: torch.device) -> Tensor | None:
    """[B] of verl's ``uid``, one text a prompt."""
    if "uid" not in data.keys():  # noqa: SIM118  a TensorDict iterates over its rows
        return None
    uids = data.get("uid")
    uids = uids.tolist() if hasattr(uids, "tolist") else list(uids)
    return torch.tensor([hash63(str(uid).encode()) for uid in uids], dtype=torch.int64, device=device)


def places_of(data: Any) -> Tensor:
    """[B, T] the packed position that predicts each response token; 0 on padding."""
    from verl.workers.utils.padding import no_padding_2_padding

    packed = torch.arange(int(data["input_ids"].offsets()[-1]), device=data["input_ids"].device)
    places: Tensor = no_padding_2_padding(packed, data)
    return places


def logits_of(output: Any, output_args: dict[str, Any], data: Any, places: Tensor) -> "Rows | None":
    """The logits of the response tokens, where they exist in this process; None where they do not.

    They do not with ``use_fused_kernels``, nor whole with a vocabulary split over ranks. Nothing is copied here.
    """
    logits = getattr(output, "logits", None)
    if logits is None or isinstance(logits, DTensor):
        return None
    if "temperature_rmpad" in output_args:  # packed: [1, nnz and padding, V], a temperature each
        return Rows(logits[0], output_args["temperature_rmpad"], places.reshape(-1), places.reshape(-1))
    starts = data["input_ids"].offsets()[:-1].unsqueeze(1)
    response = torch.arange(len(places), device=places.device).unsqueeze(1).expand_as(places)
    rows = (places - starts).clamp(min=0) + response * logits.shape[1]
    return Rows(logits.flatten(0, 1), output_args["temperature"], rows.reshape(-1), response.reshape(-1))


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits that predict the B x T response tokens, before the temperature.

    Args:
        logits: [M, V], with gradient.
        temperature: [K].
        row: [B x T] which of the M rows predicts the token.
        heat: [B x T] which of the K temperatures it has.
    """

    logits: Tensor
    temperature: Tensor
    row: Tensor
    heat: Tensor

    @torch.no_grad()
    def stats(self, token_ids: Tensor, mask: Tensor, n: int) -> TokenStats:
        """Statistics of the tokens [B x T]; NaN, -1 and 0 where ``mask`` [B, T] is not set.

        Args:
            token_ids: [B, T].
            mask: [B, T] bool.
            n: candidates kept.
        """
        tokens = mask.reshape(-1).nonzero().squeeze(1)
        found = [self._some(rows, token_ids.reshape(-1)[rows], n) for rows in torch.split(tokens, _ROWS)]
        if not found:
            found = [self._some(tokens, token_ids.reshape(-1)[tokens], n)]
        return TokenStats(
            *(
                _spread(torch.cat([getattr(part, name) for part in found]), tokens, mask.numel())
                for name in TokenStats.__dataclass_fields__
            )
        )

    def _some(self, tokens: Tensor, labels: Tensor, n: int) -> TokenStats:
        return from_logits(self.logits.detach()[self.row[tokens]], labels, temperature=self._heat(tokens), n=n)

    def candidate_logps(self, tokens: Tensor, n: int) -> Tensor:
        """Log-probs [k, n] of the ``n`` most likely candidates of the tokens [k], most likely first, with gradient."""
        z = self.logits[self.row[tokens]].float() / self._heat(tokens).unsqueeze(1)
        logps = torch.log_softmax(z, dim=1)
        # Ties to the lower id, as in TokenStats.
        ids = logps.detach().sort(dim=1, descending=True, stable=True).indices[:, :n]
        return logps.gather(1, ids)

    def _heat(self, tokens: Tensor) -> Tensor:
        return self.temperature[self.heat[tokens]].clamp(min=1e-8)  # as verl does


def _spread(values: Tensor, index: Tensor, num: int) -> Tensor:
    """``values`` at ``index`` of ``num`` rows; elsewhere what a row says that says nothing."""
    nothing: float = float("nan") if values.is_floating_point() else 0
    whole = torch.full((num, *values.shape[1:]), nothing, device=values.device).to(values.dtype)
    whole[index] = values
    return whole
