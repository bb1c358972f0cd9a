"""The tables that ``entrostat lab theory`` prints."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from entrostat.lab.theory import entropy_change, redistribution
from entrostat.lab.theory.finding import Finding
from entrostat.lab.theory.registry import findings, random_of


def run(seed: int, cases: int) -> bool:
    """Check everything and print it.

    Args:
        seed: of the random cases.
        cases: how many of each.

    Returns:
        Whether every identity holds.
    """
    console = Console(highlight=False, markup=False)
    found = findings(seed, cases)
    console.print(identities(found))
    console.print(ratios(seed, cases))
    console.print(residuals())
    broken = [f.identity for f in found if not f.holds]
    console.print(f"broken: {', '.join(broken)}" if broken else f"all {len(found)} hold")
    return not broken


def identities(found: Sequence[Finding]) -> Table:
    """Identity, source, what was compared, cases, largest error, bound, holds."""
    table = Table("identity", "source", "compared", title="Identities", header_style="bold")
    for name in ("cases", "largest error", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for f in found:
        mark = "yes" if f.holds else "NO"
        table.add_row(f.identity, f.source, f.compared, str(f.cases), f"{f.error:.1e}", f"{f.bound:.1e}", mark)
    return table


def ratios(seed: int, cases: int) -> Table:
    """Change of entropy over -eta Cov at several eta, the worst of all cases, and the order of convergence."""
    title = "Entropy change of one exact step / (-eta Cov), the case farthest from 1"
    table = Table("eta", *(t.name for t in entropy_change.THEOREMS), title=title, header_style="bold")
    worst = entropy_change.worst_ratios(random_of(entropy_change.check, seed), cases)
    for i, eta in enumerate(entropy_change.ETAS):
        table.add_row(f"{eta:.0e}", *(f"{ratios[i]:.7f}" for ratios in worst))
    table.add_row("order", *(f"{entropy_change.order(ratios):.3f}" for ratios in worst))
    return table


def residuals() -> Table:
    """SCOPE's App. A.23 as numbers."""
    title = "SCOPE App. A.23: what the score leaves out"
    columns = ("p", "p(1-p)", "|1-2p|", "|R|/L at coupling 1", "largest |R|/L")
    table = Table(*columns, title=title, header_style="bold")
    for p, *values in redistribution.table():
        table.add_row(f"{p:.6g}", *(f"{value:.6g}" for value in values))
    return table
