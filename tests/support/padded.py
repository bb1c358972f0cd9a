"""What the trainers padded, and a forward of the same model on it that is nobody's but the test's: float64, in full."""

from dataclasses import dataclass

import torch
from support import tiny_trl

NO_SERVER = "http://127.0.0.1:9"  # the discard port: everything stays in the spool


@dataclass(frozen=True)
class Padded:
    """A padded micro-batch: ids [B, L] (prompt, then response from ``first``), mask [B, L - first], logps [B, L, V].

    ``logps[:, t]`` are the log-probs after position t: of token t + 1.
    """

    ids: torch.Tensor
    first: int
    mask: torch.Tensor
    logps: torch.Tensor

    def entropy(self, shift=0):
        """[B, L - first] of ``before``."""
        logps = self.before(shift)
        return -(logps.exp() * logps).sum(-1)

    def before(self, shift=0):
        """[B, L - first, V] log-probs from which each token was drawn; ``shift`` 1: those after it."""
        return self.logps[:, self.first - 1 + shift : self.logps.shape[1] - 1 + shift]

    def logp(self):
        return self.before().gather(-1, self.ids[:, self.first :].unsqueeze(-1)).squeeze(-1)


def padded(model64, ids, attention, first, mask, temperature=1.0):
    """``Padded`` of an independent forward."""
    with torch.no_grad():
        logits = model64(input_ids=ids, attention_mask=attention).logits / temperature
    assert logits.dtype == torch.float64
    return Padded(ids, first, mask.bool(), logits.log_softmax(-1))


def double(model):
    """Another model in float64 with the weights of ``model``.

    Not a deep copy: TRL puts a function on the model that a copy would share, and with it the float32 weights.
    """
    other = type(model)(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def sharp_model():
    """Neighbouring positions differ in entropy by a lot, and responses end early, at different places."""
    made = tiny_trl.model(seed=5, initializer_range=0.6)
    with torch.no_grad():
        made.lm_head.weight[made.config.eos_token_id] *= 3
    return made
