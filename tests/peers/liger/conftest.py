"""Only where Liger and Triton are: elsewhere nothing here is collected, and pytest on it ends with status 5."""

import os
from importlib.util import find_spec

is_there = find_spec("liger_kernel") and find_spec("triton")
collect_ignore_glob = [] if is_there else ["test_*.py"]

if is_there:  # this file is imported where its tests are not run, too
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
