"""What a server half has to be: pure steps on a state that is a value."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn

from fedfeat.types import Answer, Federation, Survey, Update


class Server(ABC):
    """The server half of a method.

    Attributes:
        payload_type: The typed record that it sends and receives; the client half must speak the same.
        accepts_unequal: Whether clients may run unequal networks.
        needs_everyone: Whether all clients have to take part in every round.
        needs_whole_model: Whether it takes whole models, of which nothing stays with a client.
    """

    payload_type: ClassVar[type]
    accepts_unequal: bool = False
    needs_everyone: bool = False
    needs_whole_model: bool = False

    def check(self, model: nn.Module) -> None:  # noqa: B027 - most methods take any model
        """Refuse a model that the method cannot work on, before anything is done.

        Raises:
            UserError: What the model must have.
        """

    @abstractmethod
    def init(self, model: nn.Module, federation: Federation) -> Any:
        """Make the first state from the common initial model."""

    def survey(self, state: Any, round_idx: int) -> Survey | None:
        """Say which unlabelled inputs the round needs before its fits, and whether clients answer on them; or None."""
        return None

    def hear(self, state: Any, inputs: Tensor, answers: Iterable[Answer]) -> Any:
        """Take the survey's inputs and the clients' answers, as they stream in, into the state."""
        raise NotImplementedError

    @abstractmethod
    def broadcast(self, state: Any, client_id: int) -> Any:
        """Give the payload for one client."""

    @abstractmethod
    def aggregate(self, state: Any, updates: Iterable[Update]) -> Any:
        """Consume the round's updates in cohort order and give the new state; ``state`` stays as it is."""

    @abstractmethod
    def global_payload(self, state: Any) -> Any | None:
        """Give the payload that makes a client module the server's model, or None where there is no such model."""
