"""Environments of the trackers: one each, for their requirements disagree."""

import json
import subprocess
import sys
from pathlib import Path

from trackers import TOOLS

NEEDS = {
    "wandb": ("wandb==0.31.0", "pyarrow"),
    "trackio": ("trackio==0.43.0", "pandas", "pyarrow"),
    "tensorboardX": ("tensorboardX==2.6.5", "tensorboard==2.21.0"),
    "mlflow": ("mlflow==3.17.2", "pandas", "pyarrow"),
    "aim": ("aim==3.29.1", "pyarrow"),
    "swanlab": ("swanlab==0.10.3",),
    "kohakuboard": ("kohakuboard==0.0.1",),
    "clearml": ("clearml==2.1.12", "pandas", "pyarrow"),
    "neptune-scale": ("neptune-scale==0.30.0", "pyarrow"),
    "expr-tracker": ("expr-tracker==0.4.1", "pyarrow"),
    "rlwatch": ("rlwatch==0.5.1",),
    "rlprobe": ("rlprobe==0.1.0",),
}
"""What each tracker's environment gets, besides numpy. The versions are those of the kept results."""

Environments = dict[str, tuple[str, str]]
"""A tracker's package -> its python, and the version found there."""


def install(folder: Path) -> None:
    """Make an environment for each tracker under ``folder``; say which could not be made, and go on."""
    for package, needs in NEEDS.items():
        python = folder / package / "bin" / "python"
        print(f"{package}: {' '.join(needs)}", flush=True)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder / package], check=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy", *needs], check=False)
        if done.returncode:
            print(f"{package} could not be installed (exit {done.returncode})", flush=True)


def find(peers: list[Path]) -> Environments:
    """What the interpreters have, or those of all environments in a folder; the first that has a package is taken."""
    script = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
    wanted, environments = sorted({tool.package for tool in TOOLS.values() if tool.package}), {}
    for peer in peers:
        for python in sorted(peer.glob("*/bin/python")) if peer.is_dir() else [peer]:
            asked = [python, "-P", "-c", script, *wanted]
            found = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
            for package, version in found.items():
                environments.setdefault(package, (str(python), version))
    return environments
