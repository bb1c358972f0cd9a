"""Experiments, each a package with a command that prints a table; what they train is real."""
