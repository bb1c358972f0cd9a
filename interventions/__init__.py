"""Entropy control as small pure transforms of one policy loss. Knows nothing else of ours: a library of formulas."""
