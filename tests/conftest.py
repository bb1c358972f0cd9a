"""What every test has: hypothesis draws the same examples each time, so that a commit is red or green, not both.

``HYPOTHESIS_PROFILE=random pytest`` draws others.
"""

import os

from hypothesis import settings
from support.faults import FAULTS

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "random" if FAULTS else "same"))
