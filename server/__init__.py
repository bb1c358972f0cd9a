"""The service: takes streams, keeps them once, answers questions. FastAPI in front of ``storage``; no torch."""
