"""The server, without the guard's bound on counts: ``reservoir_quantile`` with a huge sample then ends the engine.

Nothing that is known to end it passes the guard as it is.
"""

import sys

from entrostat.server.__main__ import main
from entrostat.storage import sql_functions

BREAKING = "select reservoir_quantile(i, 0.5, 2000000000) over (order by i) from range(100000) r(i)"

if __name__ == "__main__":
    sql_functions._COUNT_AT.clear()
    sys.exit(main())
