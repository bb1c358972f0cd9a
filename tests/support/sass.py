"""Counts the instructions of NVIDIA machine code, as nvdisasm prints it; needs no GPU."""

import re
from collections import Counter
from dataclasses import dataclass

_LABEL = re.compile(r"^\s*\.(L\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?((?:@!?U?P\w+\s+)?)([A-Z][A-Z0-9_.]*)(.*)$")
_TARGET = re.compile(r"`\(\.(L\w+)\)")


@dataclass(frozen=True)
class Loop:
    """A backward branch: ``mnemonics`` counts what one turn executes, the branch included, as if no jump inside it."""

    label: str
    first: int
    last: int
    mnemonics: Counter

    @property
    def num_instructions(self):
        return self.mnemonics.total()


def instructions(text):
    """(mnemonic without modifiers, operands) in order, and at which instruction each label is."""
    found, labels = [], {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif part := _INSTRUCTION.match(line):
            found.append((part[2].split(".")[0], part[2], part[3]))
    return found, labels


def loops(text):
    """Every loop, in order of its first instruction; a branch to itself (the end of a kernel) is none."""
    found, labels = instructions(text)
    out = []
    for last, (mnemonic, _, operands) in enumerate(found):
        target = _TARGET.search(operands) if mnemonic == "BRA" else None
        if target and labels.get(target[1], last + 1) < last:
            first = labels[target[1]]
            out.append(Loop(target[1], first, last, Counter(m for m, _, _ in found[first : last + 1])))
    return sorted(out, key=lambda loop: loop.first)


def main_loop(text, mnemonic="MUFU"):
    """The first loop that computes exponentials."""
    return next(loop for loop in loops(text) if loop.mnemonics[mnemonic])


def num_instructions(text):
    """Of the whole code, without what only fills up its end."""
    return sum(mnemonic != "NOP" for mnemonic, _, _ in instructions(text)[0])


def straight(text):
    """Whether the code has no loop: then ``num_instructions`` bounds what a thread executes."""
    return not loops(text)
