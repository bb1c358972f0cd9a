"""A head that is spread over ranks is gathered, or it is said that it cannot be. FSDP2 for real: tests/flow."""

import contextlib
import sys
import types

import pytest
import torch

import entrostat
from entrostat.trainer_adapters.whole_weight import whole

NO_SERVER = "http://127.0.0.1:9"


class Partitioned:
    """In the place of DeepSpeed's ZeRO-3: a parameter is empty but inside ``GatheredParameters``."""

    def __init__(self, full):
        self.full, self.num_gathers = full, 0
        self.weight = torch.nn.Parameter(torch.empty(0, dtype=full.dtype))
        self.weight.ds_id, self.weight.ds_shape = 0, full.shape

    @contextlib.contextmanager
    def gather(self, parameters):
        assert [p.ds_id for p in parameters] == [0]
        self.num_gathers += 1
        held = self.full.clone()
        self.weight.data = held
        yield
        self.weight.data = torch.empty(0, dtype=self.full.dtype)
        held.fill_(torch.nan)  # DeepSpeed uses the storage again


@pytest.fixture
def partitioned(monkeypatch):
    made = Partitioned(torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    package = types.ModuleType("deepspeed")
    package.zero = types.SimpleNamespace(GatheredParameters=made.gather)
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    return made


def observed(folder, head):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    with entrostat.Probe("mine", url=NO_SERVER, directory=folder) as probe:
        return probe.observe(
            hidden=hidden, head=head, labels=torch.ones(2, 3, dtype=torch.int64), mask=torch.ones(2, 3)
        )


def test_a_whole_weight_is_passed_on_without_a_copy():
    weight = torch.nn.Parameter(torch.ones(3, 2))

    assert whole(weight).data_ptr() == weight.data_ptr()
    assert not whole(weight).requires_grad


def test_a_head_that_zero_3_partitioned_is_gathered_and_left_as_it_was(tmp_path, partitioned):
    seen = observed(tmp_path, partitioned.weight)

    assert torch.equal(seen.entropy, observed(tmp_path, partitioned.full).entropy)
    assert seen.entropy.isfinite().all()
    assert (partitioned.num_gathers, partitioned.weight.numel()) == (1, 0)


def test_without_deepspeed_a_partitioned_head_is_refused_with_the_way_out(tmp_path, partitioned, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)

    with pytest.raises(ValueError, match=r"ZeRO-3.*give logits in its place"):
        observed(tmp_path, partitioned.weight)


def test_an_empty_head_that_nobody_can_gather_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(ValueError, match=r"empty on this rank.*give logits"):
        observed(tmp_path, torch.nn.Parameter(torch.empty(0, 5)))
