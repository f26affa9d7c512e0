"""What a server half has to be: pure steps on a state that is a value."""

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from torch import nn

from fedfeat.types import Federation, Update


class Server(Protocol):
    """The server half of a method. There is no code to inherit.

    Attributes:
        payload_type: The typed record that it sends and receives; the client half must speak the same.
        accepts_unequal: Whether clients may run unequal networks.
    """

    payload_type: ClassVar[type]
    accepts_unequal: ClassVar[bool]

    def check(self, model: nn.Module) -> None:
        """Refuse a model that the method cannot work on, before anything is done.

        Raises:
            UserError: What the model must have.
        """

    def init(self, model: nn.Module, federation: Federation) -> Any:
        """Make the first state from the common initial model."""

    def broadcast(self, state: Any, client_id: int) -> Any:
        """Give the payload for one client."""

    def aggregate(self, state: Any, updates: Iterable[Update]) -> Any:
        """Consume the round's updates in cohort order and give the new state; ``state`` stays as it is."""

    def global_payload(self, state: Any) -> Any | None:
        """Give the payload that makes a client module the server's model, or None where there is no such model."""
