"""What clients hold of a server that hands its newest version to a round's participants alone."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple


class Versions(NamedTuple):
    """The versions that some client still holds.

    Attributes:
        received: For each client, the number of rounds after which it last received one.
        held: The versions, by that number.
    """

    received: tuple[int, ...]
    held: dict[int, Any]

    def of(self, client_id: int) -> Any:
        """Give the version of a client."""
        return self.held[self.received[client_id]]

    def handed_out(self, version: Any, cohort: Container[int]) -> Versions:
        """Give the versions after a round, whose participants receive the newest."""
        newest = max(self.held) + 1
        received = tuple(newest if k in cohort else old for k, old in enumerate(self.received))
        versions = self.held | {newest: version}
        # The newest stays even where nobody waits for it, for its number.
        return Versions(received, {number: versions[number] for number in sorted({*received, newest})})
