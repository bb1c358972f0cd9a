"""Who asks learns whether the Triton kernels can run, without importing Triton."""

import subprocess
import sys

import torch

from entrostat.probe.kernels.availability import available


def test_no_kernel_for_a_cpu_nor_for_what_it_does_not_take(monkeypatch):
    assert not available(torch.device("cpu"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("entrostat.probe.kernels.availability._has_triton", lambda: True)

    assert available(torch.device("cuda"), torch.bfloat16, n=16)
    assert not available(torch.device("cuda"), torch.float64)
    assert not available(torch.device("cuda"), n=65)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not available(torch.device("cuda"))


def test_the_probe_and_the_question_import_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"  # an import of it raises
        "import torch, entrostat; entrostat.Probe\n"
        "import entrostat.probe.token_stats, entrostat.probe.kernels\n"
        "from entrostat.probe.kernels.availability import available\n"
        "print(available(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
