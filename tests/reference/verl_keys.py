"""Lists every metric key in verl's source, without importing it; ``verl_keys.json`` is what it found in a release.

    pip install --no-deps --target FOLDER verl==0.9.1
    python tests/reference/verl_keys.py --package FOLDER/verl > tests/reference/verl_keys.json

A part of a key that is made at run time is a ``*``.
"""

import argparse
import ast
import itertools
import json
import re
from pathlib import Path

FILES = {
    "trainer/ppo/core_algos.py": ("actor/",),
    "trainer/ppo/metric_utils.py": ("",),
    "trainer/ppo/ray_trainer.py": ("",),
    "trainer/ppo/rollout_corr_helper.py": ("rollout_corr/", "actor/rollout_corr/"),
    "trainer/ppo/v1/replay_buffer.py": ("",),
    "trainer/ppo/v1/trainer_base.py": ("",),
    "trainer/ppo/v1/trainer_colocate_async.py": ("",),
    "trainer/ppo/v1/trainer_separate_async.py": ("",),
    "trainer/ppo/v1/trainer_sync.py": ("",),
    "trainer/distillation/losses.py": ("actor/",),
    "trainer/sft_trainer.py": ("",),
    "trainer/sft_trainer_ray.py": ("",),
    "workers/engine_workers.py": ("actor/", "critic/"),
    "workers/utils/losses.py": ("actor/",),
    "utils/debug/metrics.py": ("",),
    "utils/seqlen_balancing.py": ("",),
    "experimental/agent_loop/agent_loop.py": ("",),
}
"""Where metrics are made, and the prefixes that verl puts before a key that has none of its own (``rename_dict``)."""
_PARTITIONS = ["training", "validation"]
VALUES = {
    "trainer/ppo/metric_utils.py": {"prefix": ["rollout/moe"]},
    "trainer/ppo/rollout_corr_helper.py": {"prefix": ["rollout_rs_*"]},
    "trainer/ppo/ray_trainer.py": {"metric_sec": ["val-core", "val-aux"]},
    "trainer/ppo/v1/trainer_base.py": {"metric_sec": ["val-core", "val-aux"]},
    "trainer/ppo/v1/replay_buffer.py": {"prefix": _PARTITIONS, "_metrics_prefix": _PARTITIONS},
    "trainer/sft_trainer.py": {"k": ["loss", "grad_norm", "lr", "mfu"]},
    "utils/seqlen_balancing.py": {"prefix": ["global_seqlen"]},
}
"""What the changing parts of f-strings can be, where the source says."""
RENAMED = {"actor/mfu": "perf/mfu/actor", "critic/mfu": "perf/mfu/critic"}
PASSED_ON = {"rollout_corr/*"}
"""Only a prefix put before keys that are listed where they are made."""
OWN_PREFIX = ("actor/", "critic/")
COLLECTS = re.compile(r"metrics|metric_dict")
TIMES = re.compile(r"^timing")
MAKES_METRICS = re.compile(r"metrics$|unbalance$|loss")


class Keys(ast.NodeVisitor):
    """The keys of dictionaries of metrics in one file."""

    def __init__(self, values):
        self.values, self.found, self.timers, self.strings, self.function = values, set(), set(), {}, ""

    def visit_FunctionDef(self, node):
        outer = self.function, self.strings
        self.function, self.strings = node.name, {}
        self.generic_visit(node)
        self.function, self.strings = outer

    def visit_Assign(self, node):
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.JoinedStr):
            self.strings[target.id] = node.value
        if isinstance(target, ast.Subscript):
            self.add(target.slice, name_of(target.value))
        if isinstance(node.value, ast.Dict):
            self.add_dict(node.value, name_of(target))
        self.generic_visit(node)

    def visit_Return(self, node):
        if isinstance(node.value, ast.Dict) and MAKES_METRICS.search(self.function):
            self.add_dict(node.value, "metrics")
        self.generic_visit(node)

    def visit_Call(self, node):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Dict) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            self.add_dict(first, name_of(node.func.value))
        if name_of(node.func) == "marked_timer":
            self.add(first, "timing")
        self.generic_visit(node)

    def add_dict(self, node, collection):
        for key in node.keys:
            self.add(key, collection)

    def add(self, node, collection):
        found = self.timers if TIMES.search(collection) else self.found if COLLECTS.search(collection) else set()
        if isinstance(node, ast.Name):
            node = self.strings.get(node.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [
                [part.value] if isinstance(part, ast.Constant) else self.values.get(name_of(part.value), ["*"])
                for part in node.values
            ]
            found |= {"".join(choice) for choice in itertools.product(*parts)}


def name_of(node):
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def keys_of(package):
    """Key -> the file that makes it."""
    found = {}
    for file, prefixes in FILES.items():
        keys = Keys(VALUES.get(file, {}))
        keys.visit(ast.parse((package / file).read_text()))
        named = keys.found - PASSED_ON
        full = {k if k.startswith(OWN_PREFIX) else f"{prefix}{k}" for k in named for prefix in prefixes}
        for key in full | {f"timing_s/{timer}" for timer in keys.timers}:
            found.setdefault(RENAMED.get(key, key), file)
    return dict(sorted(found.items()))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--package", type=Path, required=True, help="the folder of the package verl")
    package = arguments.parse_args().package
    version = (package / "version" / "version").read_text().strip()
    print(json.dumps({"package": "verl", "version": version, "keys": keys_of(package)}, indent=1))


if __name__ == "__main__":
    main()
