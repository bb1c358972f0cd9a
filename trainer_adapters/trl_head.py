"""Our head in the place of TRL's, for the pass of the loss: ``attach(trainer, head="entrostat")``.

TRL's forward of a model with a fused head does the backbone, chooses the positions, calls one autograd function over
hidden states and head, and fills its output from it. That function is what stands in here: everything around it stays
TRL's. So log-probs, entropy and gradients are TRL's to float precision, and the candidates, rank, support and sum p^2
of every token come out of the same product with the head.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from entrostat.probe.capture import MeasureRows
from entrostat.probe.fused_head import fused_head
from entrostat.probe.token_stats import TokenStats
from entrostat.trainer_adapters.causal_lm import base_of, is_whole
from entrostat.trainer_adapters.hooks import HEAD, TRL, check
from entrostat.wire.errors import AttachError

if TYPE_CHECKING:
    from trl import GRPOTrainer

_FUNCTION = "_ChunkedLogProbFunction"
"""The name by which TRL's forward finds its autograd function (``trl/trainer/utils.py``)."""
_NAMES = tuple(TokenStats.__dataclass_fields__)
_OTHERWISE = 'attach with head="trainer", which measures candidates on a sample of tokens'


@dataclass(frozen=True, slots=True)
class Scored:
    """What one pass of the head says.

    Args:
        stats: of the M positions that have a label, with gradients.
        rows: [B, L] which of the M a position is; of no meaning where it has no label.
    """

    stats: TokenStats
    rows: Tensor

    def measure(self, num_positions: int) -> MeasureRows | None:
        """For ``capture``: of the last positions, flattened; None where no position has a label."""
        if self.stats.logp.numel() == 0:
            return None
        place = self.rows[:, -num_positions:].reshape(-1)

        def measure(rows: Tensor) -> TokenStats:
            return TokenStats(**{name: getattr(self.stats, name).detach()[place[rows]] for name in _NAMES})

        return measure

    def candidates(self, num_positions: int) -> Tensor | None:
        """[B, T, n] log-probs of the candidates of the last positions, with gradient; None as above."""
        if self.stats.logp.numel() == 0:
            return None
        return self.stats.top_logps[self.rows[:, -num_positions:]]


class OwnHead:
    """The forward of a model with TRL's fused head, with our op in the place of TRL's.

    Args:
        forward: what ``add_fused_lm_head`` made, bound to the model.
        n: candidates kept.
        say: what is told, once, where ours could not do it and TRL's did.

    Raises:
        AttachError: TRL's forward calls its op by another name.
    """

    def __init__(self, forward: types.MethodType, n: int, say: Callable[[str], None]) -> None:
        function: Any = forward.__func__
        if _FUNCTION not in function.__code__.co_names:
            raise AttachError(f"TRL {TRL.installed()}: its fused head calls no {_FUNCTION}: {_OTHERWISE}")
        self._theirs, self._n, self._say = function.__globals__[_FUNCTION], n, say
        # A twin of the function that looks this one name up here: nothing of TRL's module changes, and so no other
        # model of this process.
        twin = types.FunctionType(
            function.__code__,
            {**function.__globals__, _FUNCTION: self},
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        self._forward = types.MethodType(twin, forward.__self__)
        self._mask: Tensor | None = None
        self._scored: Scored | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's, called with ``fused_lm_head=True``; afterwards ``take`` has what came out beside it."""
        self._scored = None
        shifted = kwargs.get("shift_labels")
        labels: Tensor = kwargs["labels"][:, 1:] if shifted is None else shifted
        self._mask = labels != -100
        try:
            return self._forward(*args, **kwargs)
        finally:
            self._mask = None

    def take(self) -> Scored | None:
        """Of the last forward, once; None where TRL's own op did it."""
        scored, self._scored = self._scored, None
        return scored

    def apply(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *settings: Any) -> Any:
        """What TRL's forward calls; arguments and outputs of ``ChunkedLogProbFunction.apply``, all outputs given."""
        try:
            return self._apply(hidden, weight, bias, targets, *settings)
        except Exception as error:  # noqa: BLE001  a probe never makes training fail, and TRL's own head is at hand
            self._say(f"this pass had TRL's own head in place of ours: {error}")
            return self._theirs.apply(hidden, weight, bias, targets, *settings)

    def _apply(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        _chunk_size: int,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        _outputs: tuple[str, ...] = (),
    ) -> tuple[Tensor, ...]:
        assert self._mask is not None
        if type(weight.data) is not Tensor or weight.numel() == 0:
            raise ValueError("the head's weight is not whole on this rank")
        mask = self._mask.to(hidden.device)
        rows = None
        if hidden.shape[0] == mask.numel():
            # Without Triton, TRL hands over every position, prompts and padding too, and drops what they gave.
            rows = mask.reshape(-1).nonzero().squeeze(1)
            hidden, targets = hidden.index_select(0, rows), targets[rows]
        kind = hidden.device.type
        stats = fused_head(
            hidden,
            weight,
            targets,
            bias=bias,
            temperature=temperature,
            softcap=softcap,
            logit_scale=None if logit_scale == 1.0 else logit_scale,
            n=self._n,
            dtype=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype,
        )
        given: tuple[Tensor, ...] = (stats.logp, stats.entropy, *_without_gradient(stats), stats.is_top1)
        if rows is not None:
            given = tuple(x.new_zeros(mask.numel()).index_copy(0, rows, x) for x in given)
        self._scored = Scored(stats, (mask.reshape(-1).cumsum(0) - 1).clamp(min=0).view(mask.shape))
        return given


def _without_gradient(stats: TokenStats) -> tuple[Tensor, Tensor]:
    """Log of sum p^2, and the mean logit: over the finite ones, where TRL's mean is -inf if one is masked."""
    with torch.no_grad():
        mean = stats.logsumexp - stats.self_certainty - stats.num_finite.to(stats.logsumexp.dtype).log()
        return stats.sum_p2.log(), mean


def check_head(trainer: "GRPOTrainer") -> None:
    """Raise where our head cannot stand in.

    Raises:
        AttachError: with the reason and the way out.
    """
    check(TRL, [HEAD])
    if reason := _refusal(trainer):
        raise AttachError(f'head="entrostat": {reason}. Instead, {_OTHERWISE}')


def _refusal(trainer: Any) -> str | None:
    head = base_of(trainer.model).get_output_embeddings()
    if getattr(trainer, "is_fsdp_enabled", False):
        return "FSDP spreads the head's weight over ranks, and the backward would need it whole again"
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if plugin is not None and plugin.zero_stage == 3:
        return "DeepSpeed ZeRO-3 spreads the head's weight over ranks, and the backward would need it whole again"
    if trainer.args.n_gpu > 1:
        return "nn.DataParallel runs the head in threads, on copies of the model"
    if hasattr(head, "base_layer"):
        return "an adapter sits on the head, and the op reads the weight alone"
    if not head.weight.is_floating_point() or head.weight.element_size() < 2:
        return f"the head is quantised (its weight is {head.weight.dtype}), and the op reads the weight as it is"
    if not is_whole(head):
        return "the head's weight is not whole on this rank"
    return None
