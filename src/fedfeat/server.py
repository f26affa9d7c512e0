"""What a server half has to be: pure steps on a state that is a value."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.params import standalone
from fedfeat.tree import tensors, transform
from fedfeat.types import Answer, Federation, Params, Setting, Site, Survey, Update, Weights


class Server(ABC):
    """The server half of a method.

    Attributes:
        payload_type: The typed record that it sends and receives; the client half must speak the same.
        accepts_unequal: Whether clients may run unequal networks.
        accepts_changing: Whether a client may have other parts of the network in other rounds, and so keeps no tensors.
        needs_everyone: Whether all clients have to take part in every round.
        needs_whole_model: Whether it takes whole models, of which nothing stays with a client.
        matches_neurons: Whether it compares the neurons of all layers, of which none may be frozen.
        rebuilds_networks: Whether it makes networks anew for what clients send, so that theirs have to be as made.
        statistics: Training examples by which it takes batch norm's running statistics itself, as static batch norm
            needs it; None: all of them, and 0: it takes none, and clients have to send or keep theirs.
        needs_common_width: Whether the last layers of all clients' networks have to read equally many numbers.
    """

    payload_type: ClassVar[type]
    accepts_unequal: bool = False
    accepts_changing: bool = False
    needs_everyone: bool = False
    needs_whole_model: bool = False
    matches_neurons: bool = False
    rebuilds_networks: bool = False
    statistics: int | None = 0
    needs_common_width: bool = False

    def check(self, model: nn.Module, setting: Setting) -> None:  # noqa: B027 - most methods take any
        """Refuse a model or a course of the rounds that the method cannot work with, before anything is done.

        Raises:
            UserError: What the model must have, or the key that does not fit.
        """

    def setup(self, site: Site) -> None:
        """Note what the method computes with, at every start of a run, resumed or not."""
        self.site = site

    @abstractmethod
    def init(self, model: nn.Module, federation: Federation) -> Any:
        """Make the first state from the common initial model."""

    def survey(self, state: Any, round_idx: int) -> Survey | None:
        """Say which unlabelled inputs the round needs before its fits, and who answers on them; or None."""
        return None

    def hear(self, state: Any, inputs: Tensor, answers: Iterable[Answer]) -> Any:
        """Take the survey's inputs, as they are stored, and the answers, as they stream in, into the state."""
        raise NotImplementedError

    @abstractmethod
    def broadcast(self, state: Any, client_id: int) -> Any:
        """Give the payload for one client."""

    def own_payload(self, state: Any, client_id: int) -> Any:
        """Give what a client's own model is made of between its turns, with what the client keeps: what is sent."""
        return self.broadcast(state, client_id)

    @abstractmethod
    def aggregate(self, state: Any, updates: Iterable[Update]) -> Any:
        """Give the new state from the round's updates, in cohort order; ``state`` stays as it is."""

    @abstractmethod
    def global_payload(self, state: Any) -> Any | None:
        """Give the payload that makes a client module the server's model, or None where there is no such model.

        Tensors that it lacks would be scored as they began: where some are personal, no model is the server's.
        """

    def further_payloads(self, state: Any) -> dict[str, Any]:
        """Give other models of the server by name, which are scored beside the first: ``global/<name>_acc``.

        A `types.SentTo` is one in a client's network; where each client sees the inputs its own way, it has no score.
        """
        return {}

    def newcomer_payload(self, state: Any) -> Any | None:
        """Give what a client receives that has never taken part, or None where there is nothing for it."""
        return self.global_payload(state)


class AveragingServer(Server):
    """A server half whose state holds averaged weights, so that another half can be put around it (`Around`)."""

    payload_type: ClassVar[type] = Weights

    @abstractmethod
    def params(self, state: Any) -> Params:
        """Give the averaged tensors that cross the wire."""

    @abstractmethod
    def with_params(self, state: Any, params: Params) -> Any:
        """Give the same state with other averaged tensors, of the same names and shapes."""

    def mean(self, state: Any, updates: Iterable[Update]) -> Any:
        """As `aggregate`, for a half that goes on by `with_params`, and so without what follows from the tensors."""
        return self.aggregate(state, updates)

    def weights(self, state: Any, client_id: int, num_examples: int) -> Params | None:
        """Give what a client weighs in the mean of each tensor, float64: () or, for each of its rows, (n,).

        None where the average is no weighted mean of the numbers that clients have at a place.
        """
        return None

    def rows(self, state: Any, client_id: int) -> Params | None:
        """Give, for the tensors of which a client has some rows only, where these stand in the whole; None: all."""
        return None

    def covered(self, state: Any, cohort: Iterable[tuple[int, int]]) -> Params:
        """Say of which numbers of each tensor a mean over a cohort was made, bool: (), (n,) by rows, or of its shape.

        Args:
            state: That from which the round has started.
            cohort: Who sent something, with their numbers of examples.
        """
        found = dict.fromkeys(self.params(state), torch.tensor(False))
        for who in cohort:
            weights = self.weights(state, *who) or dict.fromkeys(found, torch.ones(()))
            found = {key: rows | (weights[key] > 0) for key, rows in found.items()}
        return found

    @abstractmethod
    def broadcast(self, state: Any, client_id: int) -> Weights:
        """Give the weights for one client."""

    def own_payload(self, state: Any, client_id: int) -> Weights:
        """Give what is sent; a half whose clients' models take more adds it."""
        return self.broadcast(state, client_id)

    @abstractmethod
    def global_payload(self, state: Any) -> Weights | None:
        """Give the averaged model, or None where some of it is personal."""

    def newcomer_payload(self, state: Any) -> Weights:
        """Give all averaged tensors."""
        return Weights(self.params(state))


class Around(Server):
    """A server half that lets another one average: it takes what that one takes, and sends what that one sends.

    Args:
        average: The server half that averages.

    Raises:
        ConfigError: It does not average weights.
    """

    payload_type: ClassVar[type] = Weights

    def __init__(self, average: AveragingServer) -> None:
        if not isinstance(average, AveragingServer):
            rule = "be a server half that averages weights (server.AveragingServer), such as fedavg or fed2"
            raise ConfigError.rule("algorithm.server.average", rule, type(average).__name__)
        self.average = average
        self.accepts_unequal, self.needs_everyone = average.accepts_unequal, average.needs_everyone
        self.accepts_changing, self.needs_common_width = average.accepts_changing, average.needs_common_width
        self.needs_whole_model, self.rebuilds_networks = average.needs_whole_model, average.rebuilds_networks
        self.matches_neurons, self.statistics = average.matches_neurons, average.statistics

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take what the average takes."""
        self.average.check(model, setting)

    def setup(self, site: Site) -> None:
        """Note the site, as the average does."""
        super().setup(site)
        self.average.setup(site)

    def averages(self, state: Any, client_id: int | None = None) -> Any:
        """Give the average's state of which a client is sent something, or the server's model is made."""
        return state.average

    def payload(self, state: Any, weights: Weights, client_id: int | None = None) -> Any:
        """Give the payload with what the average would send, to a client or as its model."""
        return weights

    def broadcast(self, state: Any, client_id: int) -> Any:
        """Send what the average sends."""
        found = self.average.broadcast(self.averages(state, client_id), client_id)
        return self.payload(state, found, client_id)

    def own_payload(self, state: Any, client_id: int) -> Any:
        """Give what the average gives; what is sent where it gives nothing else."""
        if type(self.average).own_payload is AveragingServer.own_payload:
            return self.broadcast(state, client_id)
        found = self.average.own_payload(self.averages(state, client_id), client_id)
        return self.payload(state, found, client_id)

    def global_payload(self, state: Any) -> Any | None:
        """Give the averaged model, or None where some of it is personal."""
        found = self.average.global_payload(self.averages(state))
        return None if found is None else self.payload(state, found)

    def newcomer_payload(self, state: Any) -> Any:
        """Give all averaged tensors."""
        return self.payload(state, self.average.newcomer_payload(self.averages(state)))


def alone(record: Any) -> Any:
    """Give a tree whose tensors share no memory, among themselves or with others: parts of a message hold all of it."""
    own = iter(standalone({str(i): tensor for i, tensor in enumerate(tensors(record))}).values())
    return transform(record, lambda _: next(own))


def noting(updates: Iterable[Update], cohort: list[tuple[int, int]]) -> Iterator[Update]:
    """Pass updates on as they come, and note whose they are and how many examples these clients have."""
    for update in updates:
        cohort.append((update.client_id, update.num_examples))
        yield update
