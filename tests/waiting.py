"""Waiting for what another process does."""

import time


def wait_for(condition, seconds=120):
    """Wait until a condition gives something true, and give that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found
