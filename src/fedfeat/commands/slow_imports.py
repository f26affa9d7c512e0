"""The start of a process: torch and Lightning are imported without the garbage collector and without scipy.signal.

What a start makes, modules and configurations, stays. To look through it for garbage again and again takes a fifth of
the time of the imports.
"""

import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SIGNAL = "scipy.signal"


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
        with _signal_when_used():
            import fedfeat.commands.compatibility
            import fedfeat.rounds.experiment  # noqa: F401

        gc.freeze()
        # At the end of the process all of it is garbage, and libraries of C++ complain of what is left.
        atexit.register(gc.unfreeze)


class _WhenUsed(ModuleType):
    """Stands for a module that is imported when something of it is asked for."""

    # torchmetrics imports scipy.signal only to add this where it is missing, for a metric of speech.
    hamming = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _signal_when_used() -> Iterator[None]:
    """Import torchmetrics, as Lightning does, without scipy.signal, a sixth of all imports, unless it is used."""
    if _SIGNAL in sys.modules:
        yield
        return
    stand_in = sys.modules[_SIGNAL] = _WhenUsed(_SIGNAL)
    try:
        yield
    finally:
        _forget(stand_in)


def _forget(stand_in: ModuleType) -> None:
    if sys.modules.get(_SIGNAL) is stand_in:
        del sys.modules[_SIGNAL]
    # Python may have made it an attribute of its package.
    package = sys.modules.get("scipy")
    if package is not None and vars(package).get("signal") is stand_in:
        del package.signal
