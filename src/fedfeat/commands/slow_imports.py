"""The start of a process: torch and Lightning are imported without the garbage collector.

What a start makes, modules and configurations, stays. To look through it for garbage again and again takes a fifth of
the time of the imports.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect no garbage, until the end or `import_slow`, whichever comes first."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_slow() -> None:
    """Import what every run needs and takes seconds; from then on garbage is collected, but not among this."""
    with collector_off():
        if "pytorch_lightning" in sys.modules:
            return
        import fedfeat.commands.compatibility
        import fedfeat.rounds.experiment  # noqa: F401

        gc.freeze()
        # At the end of the process all of it is garbage, and libraries of C++ complain of what is left.
        atexit.register(gc.unfreeze)
