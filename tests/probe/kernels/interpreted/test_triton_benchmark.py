"""The GPU's benchmark times what it says: each of its forms runs, here in the interpreter."""

import importlib.util
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[4] / "benchmarks" / "kernels_gpu.py"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_runs(dtype):
    spec = importlib.util.spec_from_file_location("kernels_gpu", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    forms = module.forms(2, 300, 8, dtype, device="cpu")

    assert {"bare read", "naive n=8", "from_logits n=16", "from_hidden n=8"} <= forms.keys()
    for call in forms.values():
        call()


def test_the_bare_read_writes_the_sums_of_fold():
    """Else its time would be that of something else."""
    spec = importlib.util.spec_from_file_location("kernels_gpu", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logits, labels = torch.randn(2, 100), torch.zeros(2, dtype=torch.long)
    seen = []
    original = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *a, **k: seen.append(original(*a, **k)) or seen[-1])
        call = module.bare_read(logits, labels)
    call()
    sums, label_logits = seen

    assert torch.allclose(sums[0, 5], torch.full((2,), 100.0))
    assert torch.equal(label_logits, logits[:, 0])
