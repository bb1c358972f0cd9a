"""What the kernels cost in instructions, from their machine code: no GPU is needed.

    python -P benchmarks/kernel_instructions.py [--json]

A row of logits is V = 151,936 long. ``per logit``: instructions a thread executes in one turn of the main loop, over
the logits it takes in; of ``top_candidates``, all of its instructions over the row, as long as it has no loop. An H200
reads 2.15e12 bf16 logits/s (4.3 TB/s) and issues 33.5e12 instructions of a thread a second: 15.6 a logit. Above that a
kernel waits for instructions, not for memory; one that writes as much as it reads has twice that. Counts bound a time,
they do not prove one.
"""

import json
import os
import sys
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels have no machine code
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import cross_compiled

ARCHITECTURES = (80, 90, 100)
CANDIDATES = (8, 16, 64)
COLUMNS = ("kernel", "arch", "dtype", "per_logit", "registers", "stack")


def table():
    """One dict a kernel, architecture and dtype."""
    lines = []
    for arch in ARCHITECTURES:
        for dtype in ("bf16", "fp32"):
            where = {"arch": f"sm_{arch}", "dtype": dtype}
            lines.append(where | {"kernel": "fold"} | cross_compiled.of_fold(arch, dtype))
            lines.append(where | {"kernel": "logit_gradient"} | cross_compiled.of_gradient(arch, dtype))
            for n in CANDIDATES if arch == 90 else CANDIDATES[:1]:
                lines.append(where | {"kernel": f"top_candidates n={n}"} | cross_compiled.of_top(arch, dtype, n))
        lines.append({"arch": f"sm_{arch}", "dtype": "any", "kernel": "finish"} | cross_compiled.of_finish(arch))
    where = {"arch": "sm_90", "dtype": "bf16"}
    for name, options in (
        ("fold, no maxima", {"with_maxima": False}),
        ("fold, expect_masked", {"masked": True}),
        ("fold, softcap", {"cap": 30.0}),
    ):
        lines.append(where | {"kernel": name} | cross_compiled.of_fold(90, "bf16", **options))
    return lines


def main():
    lines = table()
    if "--json" in sys.argv:
        print(json.dumps(lines))
        return
    print("| kernel | arch | dtype | per logit | registers | stack bytes |\n|---|---|---|---|---|---|")
    for line in lines:
        cells = ["-" if line[name] is None else str(line[name]) for name in COLUMNS]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
