"""How long a test waits for what comes at its own pace: long, for a loaded machine; it goes on as soon as it is so."""

import time

PATIENCE_S = 90.0


def until(condition, what="it never came true", patience_s=PATIENCE_S, every_s=0.01):
    """What ``condition()`` returns, once it is truthy."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(every_s)
    return found
