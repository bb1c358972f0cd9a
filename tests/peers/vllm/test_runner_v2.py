"""vLLM's own files of runner V2 (which needs Triton, so no engine here): its loader takes our classes, and its request
states and layout are read as they are. Only writing to the device is played: its kernels do that.
"""

import numpy as np
import pytest
import torch
import vllm.v1.worker.gpu.buffer_utils as buffers
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import _load_logitsprocs_by_fqcns
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns
from vllm.v1.worker.gpu.states import RequestState

from entrostat.trainer_adapters.vllm.rollout_probe import RolloutProbe

PACKAGE = "entrostat.trainer_adapters.vllm"
NAMES = [f"{PACKAGE}.rollout_stream:RolloutStream", f"{PACKAGE}.dlc:DlcServed"]


@pytest.mark.parametrize("load", [_load_logitsprocs_by_fqcns, _load_v2_logitsprocs_by_fqcns], ids=["V1", "V2"])
def test_both_runners_take_our_classes_by_name_and_as_they_are(load):
    ours = RolloutProbe().processor

    assert [c.__name__ for c in load([*NAMES, ours])] == ["RolloutStream", "DlcServed", ours.__name__]


def test_the_request_states_and_the_layout_of_v2_are_read_as_vllm_has_them(monkeypatch):
    monkeypatch.setattr(buffers, "is_uva_available", lambda: False)
    states = RequestState(4, 16, 16, 0, 7, torch.device("cpu"), use_dense_all_token_ids=True)
    probe = RolloutProbe(n=2)
    processor = probe.processor(None, LogitsProcRequestState.from_request_state(states))
    states.add_request("a", 2, [5, 6], 0, 8)
    slot = states.req_id_to_index["a"]
    states.all_token_ids.gpu[slot, :3] = torch.tensor([5, 6, 1], dtype=torch.int32)
    assert processor.add_request(slot, SamplingParams(temperature=0.5)) is True
    processor.apply_staged_writes()
    rows = [torch.randn(1, 7, generator=torch.Generator().manual_seed(i)) for i in range(2)]

    for num_visible, logits in zip((2, 3), rows, strict=True):
        here = torch.tensor([slot])
        layout = LogitsContext(
            expanded_idx_mapping=here, idx_mapping=here, idx_mapping_np=np.array([slot]),
            expanded_local_pos=torch.tensor([0]), input_ids=states.all_token_ids.gpu[slot, num_visible - 1].view(1),
            pos=torch.tensor([num_visible - 1]), seq_lens_upper_bound_np=np.array([num_visible]),
        )  # fmt: skip
        assert processor.apply(logits, layout) is logits

    assert probe.failure is None
    seen = probe.join([Output([5, 6], [1, 4])])
    logp = (torch.cat(rows) / 0.5).log_softmax(-1)
    torch.testing.assert_close(seen.entropy[0], -(logp.exp() * logp).sum(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.top_logps[0], logp.topk(2).values, atol=1e-5, rtol=0)


class Output:
    """A RequestOutput of one response without log-probs."""

    logprobs = None

    def __init__(self, prompt, response):
        self.prompt_token_ids, self.token_ids, self.outputs = prompt, response, [self]
