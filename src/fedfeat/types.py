"""Records that cross module borders. Everything here is a value and is never changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from fedfeat.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager

    import numpy as np
    import torch
    from torch import Tensor

Params = dict[str, "Tensor"]
"""Tensors by name, each of any shape."""
Tensors = Mapping[str, Params]
"""All tensors of a client half by its parts: ``model``, and whatever modules it has beside it."""
Source = Literal["train_pool", "heldout", "test_unlabelled", "public"]
"""Where inputs that everyone sees come from: all clients' training, validation or test examples, or public ones, of
another data set (``data@public=cifar100``) or training examples of nobody (``algorithm.public_share``)."""


class Vocabulary(NamedTuple):
    """What the inputs of a text data set are: ids of tokens; 0 is padding and every unknown token.

    Attributes:
        size: Number of ids, 0 among them.
        vectors: Fixed vectors of the tokens, float32 (size, D), row 0 zero; None where the network learns its own.
    """

    size: int
    vectors: Tensor | None = None


class Weights(NamedTuple):
    """Payload of methods that average weights.

    Attributes:
        params: The shared tensors of the model under their names, each of its layer's shape.
    """

    params: Params


class Kept(NamedTuple):
    """What a client keeps from one turn to its next; nothing of it crosses the wire.

    Attributes:
        personal: Tensors of the model that stay with the client (`models.policy`).
        memory: The method's own typed record, or None.
        optimizer: The optimizer's tensors by ``<parameter>/<name>``; empty unless ``federation.opt_state=keep``.
    """

    personal: Params = {}  # noqa: RUF012 - never changed in place
    memory: Any = None
    optimizer: Params = {}  # noqa: RUF012


class SentTo(NamedTuple):
    """A model of the server's in the network of a client, see `Server.further_payloads`.

    Attributes:
        client_id: The client.
        payload: What makes a client module that model.
    """

    client_id: int
    payload: Any


class Update(NamedTuple):
    """What one client hands back after a local fit.

    Attributes:
        client_id: The client.
        num_examples: Size of its training set, the weight in sample-weighted averages.
        payload: The method's own typed record; the only part that crosses the wire.
        kept: What the client keeps until its next turn, or None.
        metrics: Scalars of the fit (``train/loss``, ``examples``, ``flops``, ``own/acc``, ...), never tensors.
        preferences: Class preferences of the fitted model where the task asked for them; never sent.
    """

    client_id: int
    num_examples: int
    payload: Any
    kept: Kept | None
    metrics: dict[str, float]
    preferences: Any = None


class Turn(NamedTuple):
    """A client's turn, as its client half sees it when it begins and when it uploads.

    Attributes:
        client_id: The client.
        round_idx: The round, from 0.
        payload: What the server has sent.
        memory: The method's record of the client's last turn, or None before its first.
        num_steps: Optimizer steps of the fit: planned when it begins, made when it uploads.
        lr: Learning rate of the fit.
        device: Where the fit runs.
        class_counts: The client's training examples per class, int64 (C,).
        batches: From a batch size to the client's training examples with labels, (B, ...) and (B,), in their fixed
            order and without augmentation.
        final: Whether it is the fit after the last round (``federation.final_epochs``), of which nothing is sent.
        run_seed: The experiment's seed.
    """

    client_id: int
    round_idx: int
    payload: Any
    memory: Any
    num_steps: int
    lr: float
    device: torch.device
    class_counts: np.ndarray
    batches: Callable[[int], Iterator[tuple[Tensor, Tensor]]]
    final: bool = False
    run_seed: int = 0

    @property
    def seed(self) -> int:
        """Of what the method draws when the turn begins; few do, so it is made when it is asked for."""
        return derive_seed(self.run_seed, "turn", self.round_idx, self.client_id)


class Survey(NamedTuple):
    """Unlabelled inputs that the server shares in a round, and who answers on them.

    Attributes:
        source: Where they come from, see `Source`.
        size: How many.
        asked: ``none``, the ``cohort``, ``all`` clients, or those of these numbers.
        augment: Whether the inputs are augmented as training inputs are.
        sends: Whether clients receive what `Server.broadcast` gives before they answer; else they go by what they keep.
        counted: Which of it is bytes that are sent: inputs and answers; answers alone, where the cohort's inputs are in
            what is sent before the fits; or ``none`` where it stands for what a server computes.
    """

    source: Source
    size: int
    asked: Literal["none", "cohort", "all"] | tuple[int, ...] = "none"
    augment: bool = False
    sends: bool = False
    counted: Literal["all", "answers", "none"] = "all"


class Answer(NamedTuple):
    """A client's answer to a survey.

    Attributes:
        client_id: The client.
        num_examples: Its training examples.
        payload: The method's own typed record, see `ClientModule.answer`.
        flops: What it took.
    """

    client_id: int
    num_examples: int
    payload: Any
    flops: float


class Networks(Protocol):
    """Which network each client runs: equal keys are equal architectures, and None is the server's network."""

    def key(self, client_id: int, round_idx: int = 0) -> Hashable:
        """Give the key of a client's network in a round, from 0."""

    def kinds(self, num_clients: int) -> list[int]:
        """Name a client of each architecture with layers that the server's network does not have."""

    def build(self, key: Hashable = None) -> Any:
        """Build a `models.network.Network` with the common initial weights."""


class Federation(NamedTuple):
    """What a server may know before the first round.

    Attributes:
        num_clients: Number of clients.
        num_examples: Training examples per client, int64 (K,).
        class_counts: Training examples per client and class, int64 (K, C).
        policies: Every tensor of the server's model to its policy, see `models.policy.tensor_policies`.
        networks: Which network each client runs.
        seed: The experiment's seed.
        excluded: Clients that take part in no round.
    """

    num_clients: int
    num_examples: np.ndarray
    class_counts: np.ndarray
    policies: dict[str, str]
    networks: Networks
    seed: int = 0
    excluded: frozenset[int] = frozenset()


class Setting(NamedTuple):
    """How the rounds go, for the halves of a method to refuse what they cannot work with.

    Attributes:
        algorithm: Name of the method.
        num_rounds: Rounds in all.
        num_clients: Clients that train.
        cohort_size: Participants of a round.
        local_epochs: Passes over a client's data per round; where steps are counted, over the largest client's.
        keeps_optimizer: Whether optimizer state survives from a client's turn to its next.
        drops_stragglers: Whether some participants of a round send nothing.
        augmented: Whether training inputs are new in every epoch.
        sources: Where unlabelled inputs can come from, see `Source`.
        permuted: Whether each client sees inputs in an order of the pixels of its own.
        averages_weights: Whether what a client sends is a mean over its steps instead of the last weights.
    """

    algorithm: str
    num_rounds: int
    num_clients: int
    cohort_size: int
    local_epochs: float | None = None
    keeps_optimizer: bool = False
    drops_stragglers: bool = False
    augmented: bool = False
    sources: tuple[Source, ...] = ("train_pool", "test_unlabelled")
    permuted: bool = False
    averages_weights: bool = False


class Site(NamedTuple):
    """What a server half finds where it runs, at every start of a run.

    Attributes:
        networks: Which network each client runs; None is the key of the server's own.
        plain: From inputs as they are stored, (B, ...), to what a network reads.
        device: Where the server computes.
        autocast: Context in which it computes in the precision of the fits.
        spend: Adds FLOPs of the server's to ``compute/flops``.
        examples: From a source, a number and the round to inputs as they are stored, (m, ...), and labels (m,).
    """

    networks: Networks
    plain: Callable[[Tensor], Tensor]
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    spend: Callable[[float], None]
    examples: Callable[[Source, int, int], tuple[Tensor, Tensor]]
