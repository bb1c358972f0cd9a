"""The words of the logical and the metacognitive kind, and LaTeX's commands.

Lists of ours, written from what the paper says each kind is for (Exchange App. C: causal, contrastive, progressive and
parallel connectors; verifying, summarising, revising) and its three examples of each (Sec. 3). Conditional connectors
and words of doubt are our addition. The paper's own table of examples was not at hand.
"""

_LOGICAL = {
    "causal": "because since so therefore thus hence consequently accordingly thereby whence implies imply follows",
    "contrastive": """but however although though whereas while yet nevertheless nonetheless despite instead otherwise
        conversely contrary unlike""",
    "progressive": """then next first second third fourth firstly secondly thirdly finally lastly furthermore moreover
        additionally also besides subsequently afterwards now""",
    "parallel": "and or nor either neither both similarly likewise respectively equally",
    "conditional": """if unless when whenever where wherever suppose supposing assume assuming given provided iff let
        until else""",
}
_METACOGNITIVE = {
    "verifying": """wait hmm hm check checks checking checked recheck verify verifies verifying verified verification
        confirm confirms confirming confirmed ensure sanity careful carefully sure indeed correct correctly validate
        test testing""",
    "doubting": """maybe perhaps possibly probably actually alternatively alternative seems seem unsure confused
        confusing strange weird wrong incorrect incorrectly mistake mistakes mistaken error errors oops guess doubt
        unclear""",
    "revising": """reconsider rethink revisit revise revised review correction backtrack redo retry try trying tried
        attempt""",
    "summarising": """summary summarize summarise summarizing recap overall conclude conclusion think thinking thought
        consider considering reflect realize realise notice noticed remember recall okay ok alright approach strategy
        plan""",
}
# Commands that are hardly ever a piece of an English word.
_LATEX = """frac dfrac tfrac sqrt cdot cdots ldots times leq geq neq approx equiv infty left right boxed mathrm mathbf
    mathbb overline binom pmod bmod alpha beta gamma delta theta lambda sigma omega quad qquad subseteq forall
    rightarrow"""


def _words(*lists: str) -> frozenset[str]:
    words = " ".join(lists).split()
    if twice := {word for word in words if words.count(word) > 1}:
        raise ValueError(f"listed twice: {sorted(twice)}")
    return frozenset(words)


LOGICAL_WORDS = _words(*_LOGICAL.values())
METACOGNITIVE_WORDS = _words(*_METACOGNITIVE.values())
COMMANDS = _words(_LATEX)
_words(" ".join(LOGICAL_WORDS), " ".join(METACOGNITIVE_WORDS))  # no word is of both kinds
