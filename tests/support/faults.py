"""How long tests look for faults: ``make faults`` sets ENTROSTAT_FAULTS, and draws others each time."""

import os

FAULTS = int(os.environ.get("ENTROSTAT_FAULTS", "0"))
"""So many stories, and in proportion as many of everything else that is made up; 0: a few, always the same."""
