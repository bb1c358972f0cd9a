"""Statements about a whole run: pure functions of NumPy arrays, and what reads the arrays (``run.py``)."""
