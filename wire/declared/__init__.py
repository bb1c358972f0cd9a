"""The declarations of signals, a module a family."""
