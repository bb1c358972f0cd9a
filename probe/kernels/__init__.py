"""Faster forms of ``probe.token_stats``: Triton on a GPU, compiled torch on a CPU; each imported where it is used."""
