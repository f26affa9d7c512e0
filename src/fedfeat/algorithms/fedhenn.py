"""FedHeNN: Makhija et al., "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022, Alg. 1 and 2.

    server: each round t (from 0):  X_t <- m unlabelled inputs, the same for everyone;  eta_t <- eta_0 sqrt(t)
            homogeneous:    send w, X_t;  receive w_k;  w <- sum_k n_k / (sum_j n_j) * w_k
            heterogeneous:  Kbar <- 1/N sum_j K(A_j), A_j the representation of X_t by the network of client j
                            send Kbar, X_t;  receive w_k, which only client k goes on with
    client: homogeneous:    w_k <- w;  Kbar <- K(A), A the representation of X_t by w, fixed
            heterogeneous:  w_k is its own
            minimise  F_k(w_k) + eta_t * (1 - CKA(K(A_k), Kbar)),  A_k the representation of X_t by w_k

Gradients flow through K(A_k) only. Every client keeps its last w_k, which is its personal model. The paper takes the
term over all of X_t at every step; ``rad_batch`` takes it over some of X_t, drawn anew for every step.

A_k is what a dropout in front of the last layer reads: after it, a network in training would be far from the target
that it gives itself (1 - CKA of .9 in sent140_lstm). dishamakhija/FedHeNN compares after it, in its networks for
CIFAR-100. Batch norms give A_k by their running statistics, as they give Kbar, and learn none of X_t.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.nn import functional

from fedfeat.algorithms.own_models import refuse_personal
from fedfeat.algorithms.shared_inputs import SharedInputsServer
from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import Count, Positive, Share, integer
from fedfeat.errors import ConfigError
from fedfeat.features.alignment import AlignmentTerm, centred_kernel_, represented
from fedfeat.features.cka import Hsic
from fedfeat.features.kernels import Kernel, KernelName
from fedfeat.models.freezing import mixes_examples, statistics_at_rest
from fedfeat.models.network import Network
from fedfeat.params import copy_into, snapshot
from fedfeat.server import Around, AveragingServer
from fedfeat.types import Answer, Federation, Setting, Tensors, Turn, Update, Weights


class AlignedWeights(NamedTuple):
    """Payload in both directions.

    Attributes:
        params: The model's tensors; empty where a client goes on with its own.
        inputs: X_t as it is stored, (m, ...), or None in a round without the term.
        target: Kbar of X_t where the server computes it.
        eta: Weight of the term.
    """

    params: dict[str, Tensor]
    inputs: Tensor | None = None
    target: Kernel | None = None
    eta: float = 0.0


class OwnModel(NamedTuple):
    """A client's memory: its last w_k."""

    params: dict[str, Tensor]


class FedHeNNClient(ClientModule):
    """Clients that pull their representation of shared inputs towards a common one.

    Args:
        kernel: ``linear`` or ``rbf``, see `features.kernels.kernel_of`.
        sigma_factor: Of rbf.
        hsic: ``biased`` or ``unbiased``; the biased one of few inputs is too large.
        rad_batch: Inputs in the term at a step; None takes all of them, as the paper does.
        rad_every: Batches between two that have the term; each is a step but where gradients are accumulated.
        repr_at: What is compared: the ``penultimate`` output (the paper), the encoder's ``features`` (of an LSTM its
            last hidden state, for which that code has a helper), ``logits``, or ``code_swapped``: log-softmax of the
            logits, while the penultimate output serves as logits, which is what dishamakhija/FedHeNN computes.
        logits_dropout: Dropout on the logits; .6 in that code.
        arguments: As in `ClientModule`.
    """

    payload_type: ClassVar[type] = AlignedWeights
    keeps_model = True
    apart = "its term passes over the shared inputs, which no stack of clients holds"

    def __init__(
        self,
        *,
        kernel: KernelName = "linear",
        sigma_factor: Positive = 0.4,
        hsic: Hsic = "biased",
        rad_batch: Annotated[int, integer(4)] | None = 256,
        rad_every: Count = 1,
        repr_at: Literal["penultimate", "features", "logits", "code_swapped"] = "penultimate",
        logits_dropout: Share = 0.0,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        refuse_personal("FedHeNN", arguments.get("personal", ()))
        self.network = cast(Network, self.model)
        if repr_at == "code_swapped":
            self._check_swapped()
        self.rad_every, self.repr_at, self.logits_dropout = rad_every, repr_at, logits_dropout
        self.term = AlignmentTerm(kernel, sigma_factor, hsic, rad_batch, whole=mixes_examples(self.model))
        self._initial = snapshot(self.model)
        self._sent = AlignedWeights({})
        self._num_steps = 0

    def _check_swapped(self) -> None:
        classes = self.network.num_classes
        if self.network.last_layer.in_features < classes:
            rule = f"be another where the penultimate output is narrower than the {classes} classes"
            raise ConfigError.rule("algorithm.client.repr_at", rule, "code_swapped")
        if self.softmax_scope != "all":
            rule = "be all where algorithm.client.repr_at is code_swapped"
            raise ConfigError.rule("algorithm.client.softmax_scope", rule, self.softmax_scope)

    def receive(self, payload: AlignedWeights, memory: OwnModel | None) -> None:
        """Become one client: the server's weights where it sends some, else the client's own."""
        copy_into(self.model, payload.params or (memory.params if memory else self._initial))

    def recall(self, payload: AlignedWeights | None, memory: OwnModel | None) -> None:
        """Take a client's own last model, before its first turn the one that it would start from."""
        sent = payload.params if payload else {}
        copy_into(self.model, memory.params if memory else sent or self._initial)

    def begin_turn(self, turn: Turn) -> None:
        """Ready the module for one local fit."""
        self._sent, self._num_steps = turn.payload, 0

    def prepare(self, batches: Any) -> Any:
        """Fix the turn's inputs and, where the server sent none, the target: that of the received model."""
        self.term.begin()
        if self._sent.inputs is not None:
            self.to(self._sent.inputs.device).eval()
            inputs = self.laid_out(self.plain(self._sent.inputs))
            self.term.fix(inputs, self._sent.target, self.represent)
            self.train()
        return batches

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + eta_t * (1 - CKA(K_k, Kbar))``."""
        loss = super().loss(batch)
        has_term = self._sent.inputs is not None and self._num_steps % self.rad_every == 0
        self._num_steps += 1
        with statistics_at_rest(self.model):
            return loss + self._sent.eta * self.term.distance(self.represent) if has_term else loss

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[AlignedWeights, OwnModel]:
        """Give the weights to the server and to the client's memory."""
        # Modules of a pool wait for their next turn, and targets of m x m would add up.
        self.term.forget()
        self._sent = AlignedWeights({})
        return AlignedWeights(tensors["model"]), OwnModel(tensors["model"])

    def answer(self, inputs: Tensor, part: int) -> Kernel:
        """Give the centred linear kernel of the inputs' representation, of at most m x m numbers."""
        return centred_kernel_(represented(lambda raw: self.represent(self.plain(raw)), inputs, part))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...); under ``code_swapped`` the penultimate output (B, d)."""
        if self.repr_at == "code_swapped":
            return self.network.last_input(self.laid_out(inputs))
        return self._logits(inputs)

    def represent(self, inputs: Tensor) -> Tensor:
        """Representation (B, d) of inputs (B, ...)."""
        if self.repr_at == "penultimate":
            return self.network.representation(self.laid_out(inputs))
        if self.repr_at == "features":
            return self.network.feature_vector(self.laid_out(inputs))
        logits = self._logits(inputs)
        return logits if self.repr_at == "logits" else logits.log_softmax(1)

    def _logits(self, inputs: Tensor) -> Tensor:
        logits = super().forward(inputs)
        return (
            functional.dropout(logits, self.logits_dropout, self.training) if self.logits_dropout else logits
        )

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the passes of the term: both ways for each input in it, forward for the target.

        Each counts as one through the whole network. The products of the kernels themselves are not counted.
        """
        metrics = super().turn_metrics()
        metrics["flops"] += self.term.num_inputs * self.flops_per_example
        metrics["flops"] += self.term.num_targets * self.forward_flops_per_example
        return metrics


class FedHeNNState(NamedTuple):
    """State of either server.

    Attributes:
        round_idx: The round.
        average: State of the server half that averages; None where nothing is averaged.
        inputs: X_t between survey and aggregation.
        target: Kbar, likewise.
        trained: Clients that have trained last, where Kbar is over them.
    """

    round_idx: int
    average: Any = None
    inputs: Tensor | None = None
    target: Kernel | None = None
    trained: tuple[int, ...] = ()


class FedHeNNServer(SharedInputsServer, Around):
    """Algorithm 1: clients of one architecture, whose weights another server half averages.

    Args:
        average: The server half that averages.
        arguments: As in `SharedInputsServer`.
    """

    payload_type: ClassVar[type] = AlignedWeights

    def __init__(self, average: AveragingServer, **arguments: Any) -> None:
        SharedInputsServer.__init__(self, **arguments)
        Around.__init__(self, average)

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take what the average takes."""
        SharedInputsServer.check(self, model, setting)
        Around.check(self, model, setting)

    def init(self, model: nn.Module, federation: Federation) -> FedHeNNState:
        """Start from the common initial model."""
        return FedHeNNState(0, self.average.init(model, federation))

    def hear(self, state: FedHeNNState, inputs: Tensor, answers: Iterable[Answer]) -> FedHeNNState:
        """Keep X_t for the round."""
        return state._replace(inputs=inputs)

    def payload(self, state: FedHeNNState, weights: Weights, client_id: int | None = None) -> AlignedWeights:
        """Give w, with X_t for a client."""
        if client_id is None:
            return AlignedWeights(weights.params)
        return AlignedWeights(weights.params, state.inputs, eta=self.eta(state.round_idx))

    def aggregate(self, state: FedHeNNState, updates: Iterable[Update]) -> FedHeNNState:
        """Average the weights and drop X_t."""
        return FedHeNNState(state.round_idx + 1, self.average.aggregate(state.average, updates))
