"""Only where Liger and Triton are: elsewhere nothing here is collected, and pytest on it ends with status 5."""

import os
from importlib.util import find_spec

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

collect_ignore_glob = [] if find_spec("liger_kernel") and find_spec("triton") else ["test_*.py"]
