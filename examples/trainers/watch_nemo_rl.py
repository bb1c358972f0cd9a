"""NeMo-RL: a loss function around the trainer's own, which is given logits. A step is one ``policy.train`` call."""

import atexit
from typing import Any

from shared import open_probe

_HERE: dict[str, Any] = {"step": 0}  # of this worker process: the loss comes in anew with each ``policy.train``


class Watched:
    """``grpo_train(..., loss_fn=Watched(loss_fn, "my-run", vocab_size), ...)``.

    Args:
        loss_fn: ``ClippedPGLossFn``.
        run: its name.
        vocab_size: of the model's head: logits that are not whole are an error, before there is a loss.
    """

    def __init__(self, loss_fn: Any, run: str, vocab_size: int, **options: Any) -> None:
        if getattr(loss_fn, "use_fused_linear_logprobs", False):
            raise ValueError("use_fused_linear_logprobs makes no logits, and entrostat reads them: switch it off")
        self.loss_fn, self.run, self.vocab_size, self.options = loss_fn, run, vocab_size, options
        self.loss_type, self.input_type = loss_fn.loss_type, type(loss_fn.input_type)["LOGIT"]
        self.is_new = True

    def __getattr__(self, name: str) -> Any:
        if name == "loss_fn":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.loss_fn, name)

    def __call__(self, logits: Any, data: Any, global_valid_seqs: Any, global_valid_toks: Any) -> Any:
        """The loss of ``loss_fn``, from the log-probs that NeMo-RL itself would have made of these logits."""
        from nemo_rl.distributed.model_utils import get_next_token_logprobs_from_logits

        if logits.shape[-1] < self.vocab_size or hasattr(logits, "full_tensor"):
            raise ValueError("Watched needs all logits of whole responses: tensor_parallel_size 1, context too")
        if self.is_new:
            self.is_new = False
            self._begin()
        logp = get_next_token_logprobs_from_logits(data["input_ids"], logits, seq_index=data.get("seq_index"))
        with _HERE["probe"].session.guarded("observing a micro-batch"):
            _HERE["probe"].observe(
                logits=logits[:, :-1],
                labels=data["input_ids"][:, 1:],
                mask=(data["token_mask"] * data["sample_mask"].unsqueeze(-1))[:, 1:],
                advantages=data["advantages"][:, 1:],
                old_logps=None if self.loss_fn.force_on_policy_ratio else data["prev_logprobs"][:, 1:],
                rollout_logps=data["generation_logprobs"][:, 1:],
            )
        return self.loss_fn(logp, data, global_valid_seqs, global_valid_toks)

    def _begin(self) -> None:
        if "probe" in _HERE:
            end()
        else:
            _HERE["probe"] = open_probe(self.run, **self.options)
            atexit.register(end)


def end() -> None:
    """The step that was observed last is over: the next ``policy.train`` says so, or the end of the process."""
    _HERE["step"] += 1
    _HERE["probe"].end_step(_HERE["step"])
