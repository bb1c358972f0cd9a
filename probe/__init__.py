"""Measuring, inside the trainer's process: per-token statistics, what is kept of a step, the signals made from it."""
