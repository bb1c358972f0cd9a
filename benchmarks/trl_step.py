"""A whole TRL GRPO step with and without the probe, in pairs: ``make bench``.

Each round trains the demo's model twice from the same weights, once attached and once not, the order alternating; a
training's figure is its median step. No server runs: batches go to a spool on disk, so that journal work is there too.
The floor is the unattached training of the same round; what is printed are ratios and the probe's own account.
"""

import argparse
import copy
import itertools
import logging
import os
import statistics
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")


MODELS = (("0.3 M parameters", 3, 96), ("6 M parameters", 8, 256), ("38 M parameters", 12, 512))
"""Name, layers, width."""


def main() -> None:
    """Print a table of the models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="", help="models whose name begins so")
    chosen = parser.parse_args()
    logging.getLogger("entrostat").setLevel(logging.ERROR)  # it says, rightly, that no server answers
    from entrostat.lab.many_answers import task, teach

    own = _probes_own_ms()
    tokenizer = task.make_tokenizer()
    print("| model | plain step ms | ratio attached / plain: median (min to max) | probe_ms median | rounds |")
    print("|---|---|---|---|---|")
    for name, layers, width in (model for model in MODELS if model[0].startswith(chosen.only)):
        model = teach.make_model(tokenizer, layers=layers, width=width)
        teach.teach(model, tokenizer, steps=20)
        plain, ratios = [], []
        own.clear()
        for number in range(chosen.rounds):
            timed = {}
            for attached in (number % 2 == 0, number % 2 == 1):
                timed[attached] = _train(copy.deepcopy(model), tokenizer, chosen.steps, attached)
            plain.append(timed[False])
            ratios.append(timed[True] / timed[False])
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        plain_ms, own_ms = statistics.median(plain) * 1e3, statistics.median(own)
        print(f"| {name} | {plain_ms:.0f} | {spread} | {own_ms:.2f} | {chosen.rounds} |", flush=True)


def _train(model, tokenizer, steps: int, attached: bool) -> float:  # type: ignore[no-untyped-def]
    """Median seconds a step of one training, first three left out."""
    import entrostat
    from entrostat.lab.many_answers import grpo

    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = grpo.make_trainer(
            model, tokenizer, steps=steps, output_dir=folder, on_step=lambda _step: ends.append(time.perf_counter())
        )
        if attached:
            handle = entrostat.attach(trainer, url="http://127.0.0.1:9", directory=f"{folder}/spool")
            trainer.train()
            handle.detach()
        else:
            trainer.train()
    gaps = [b - a for a, b in itertools.pairwise(ends)]
    return statistics.median(gaps[3:])


def _probes_own_ms() -> list[float]:
    """A list that grows by what each step's record says of the probe's time (``probe_ms``)."""
    from entrostat.probe.recorder import Recorder

    found: list[float] = []
    original = Recorder._cost

    def noted(self, now):  # type: ignore[no-untyped-def]
        cost = original(self, now)
        found.append(cost["probe_ms"].state[0])
        return cost

    Recorder._cost = noted  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
