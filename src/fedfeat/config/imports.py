"""Objects by their dotted names, as ``_target_`` gives them."""

import logging
from typing import Any

from hydra.utils import get_object


def imported(name: str) -> Any:
    """Import an object; whoever calls it says what is wrong, and Hydra prints no lines of its own before that."""
    log = logging.getLogger(get_object.__module__)
    silent, log.disabled = log.disabled, True
    try:
        return get_object(name)
    finally:
        log.disabled = silent
