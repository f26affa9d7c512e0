"""fedfeat: feature-level federated learning with PyTorch Lightning and Hydra.

From Python, `run` runs an experiment, `build` builds its parts, and `load` opens the directory of a run.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfeat.commands.loading import load
    from fedfeat.commands.python import build, run

__version__ = "0.2.0"
__all__ = ["build", "load", "run"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: whoever imports a module of the package does not pay for Hydra or torch."""
    if name == "load":
        from fedfeat.commands.loading import load

        return load
    if name in ("build", "run"):
        from fedfeat.commands import python

        return getattr(python, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
