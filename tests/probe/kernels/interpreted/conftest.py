"""These run in a process of their own (``test_interpreted.py``): Triton reads TRITON_INTERPRET when it is imported."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
