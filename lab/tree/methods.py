"""What is run on the tree: GRPO, an entropy bonus at several coefficients, CaSP at several parameters."""

from collections.abc import Iterator

from entrostat.lab.tree.train import Active

COEFFICIENTS = (0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5)


def methods() -> Iterator[tuple[str, Active]]:
    """(family, interventions). CaSP: the paper's values, the code's, then a grid that acts on every choice."""
    yield "GRPO", {}
    for c in COEFFICIENTS:
        yield "GRPO + entropy", {"entropy_bonus": {"c": c}}
    yield "CaSP", casp(3, 0.01, 1.1, 0.8)
    yield "CaSP", casp(3, 0.05, 1.1, 0.8)
    for num_candidates in (3, 4):
        for a in (0.01, 0.2, 0.5):
            for lambda_top1 in (1.1, 2.0, 5.0):
                yield "CaSP", casp(num_candidates, a, lambda_top1, 0.0)


def casp(num_candidates: int, a: float, lambda_top1: float, tau: float) -> Active:
    """CaSP with these parameters."""
    return {"casp": {"num_candidates": num_candidates, "a": a, "lambda_top1": lambda_top1, "tau": tau}}
