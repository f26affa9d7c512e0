"""What the loop asks a server half for, checked where it comes from: a method of one's own may give anything."""

from collections.abc import Iterable, Iterator
from typing import Any

from fedfeat.errors import ConfigError
from fedfeat.server import Server
from fedfeat.types import Update


def broadcast(server: Server, state: Any, client_id: int) -> Any:
    """Give what `Server.broadcast` gives.

    Raises:
        ConfigError: It is not the method's payload.
    """
    found = server.broadcast(state, client_id)
    if not isinstance(found, server.payload_type):
        rule = f"{type(server).__name__}.broadcast must give a {server.payload_type.__name__}"
        raise ConfigError(f"{rule}, but it gives a {type(found).__name__}.")
    return found


def aggregated(server: Server, state: Any, updates: Iterable[Update]) -> Any:
    """Give the state after `Server.aggregate`; an error of it has a note of whose update it was at.

    Raises:
        ConfigError: There is none, for a method of one's own may have forgotten to give it.
    """
    taken = _Taken(updates)
    try:
        found = server.aggregate(state, taken)
    except Exception as error:
        if taken.client_id is not None:
            error.add_note(f"at the update of client {taken.client_id}")
        raise
    if found is None and state is not None:
        raise ConfigError(f"{type(server).__name__}.aggregate must give the new state, but it gives None.")
    return found


class _Taken:
    """Updates, and whose is being worked on: nobody's while the next is awaited, or when all are there."""

    def __init__(self, updates: Iterable[Update]) -> None:
        self._updates = updates
        self.client_id: int | None = None

    def __iter__(self) -> Iterator[Update]:
        for update in self._updates:
            self.client_id = update.client_id
            yield update
            self.client_id = None
