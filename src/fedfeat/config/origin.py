"""Where code and errors come from: from ours, from installed packages, or from a user's own."""

import os
import sysconfig
import traceback
from pathlib import Path

_KINDS = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_METHODS = f"{_OURS}algorithms{os.sep}"
"""Where a method of one's own may stand beside ours."""
_INSTALLED = (_OURS, *(f"{one}{os.sep}" for one in map(sysconfig.get_path, _KINDS)))
# Those of a user or of the system, which an environment may see as well.
_PACKAGES = {"site-packages", "dist-packages"}


def root_cause(error: BaseException) -> BaseException:
    """Give the first of an error's causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def is_own(filename: str) -> bool:
    """Whether a file of code is neither ours nor of an installed package."""
    path = Path(filename)
    return path.is_file() and not filename.startswith(_INSTALLED) and _PACKAGES.isdisjoint(path.parts)


def own_place(error: BaseException) -> str:
    """Say where an error comes from, as `` in FILE:LINE``, if that is neither ours nor of an installed package.

    It is the innermost such line that the first of its causes has passed through, or else that of a method.
    """
    places = traceback.extract_tb(root_cause(error).__traceback__)
    methods = [one for one in places if one.filename.startswith(_METHODS)]
    own = [one for one in places if is_own(one.filename)] or methods
    return f" in {own[-1].filename}:{own[-1].lineno}" if own else ""
