"""The client half of FedHeNN; its box is in `algorithms.fedhenn`."""

from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.client import Batch, ClientModule
from fedfeat.errors import ConfigError
from fedfeat.features.alignment import represented
from fedfeat.features.cka import Hsic, Target, cka
from fedfeat.features.kernels import Kernel, KernelName, kernel_of
from fedfeat.models.lstm import Scramble
from fedfeat.models.network import Network
from fedfeat.params import copy_into, snapshot

ReprAt = Literal["penultimate", "features", "logits", "code_swapped"]

PART = 128
"""Shared inputs that pass through a network at once on a CPU: activations of thousands leave its caches and are given
back to the system after every step, which made a step with 2,000 inputs 3.5 times as long (fedrep_cnn10)."""


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


class FedHeNNClient(ClientModule):
    """Clients that pull their representation of shared inputs towards a common one.

    Args:
        kernel: ``linear`` or ``rbf``, see `features.kernels.kernel_of`.
        sigma_factor: Of rbf.
        hsic: ``biased`` or ``unbiased``; the biased one of few inputs is too large.
        rad_batch: Inputs in the term at a step; None takes all of them, as the paper does.
        rad_every: Steps between two that have the term.
        repr_at: What is compared: the ``penultimate`` output (the paper), the encoder's ``features`` (of an LSTM its
            last hidden state, for which that code has a helper), ``logits``, or ``code_swapped``: log-softmax of the
            logits, while the penultimate output serves as logits, which is what dishamakhija/FedHeNN computes.
        logits_dropout: Dropout on the logits; .6 in that code.
        arguments: As in `ClientModule`.
    """

    payload_type: ClassVar[type] = AlignedWeights
    keeps_model = True

    def __init__(
        self,
        *,
        kernel: KernelName = "linear",
        sigma_factor: float = 0.4,
        hsic: Hsic = "biased",
        rad_batch: int | None = 256,
        rad_every: int = 1,
        repr_at: ReprAt = "penultimate",
        logits_dropout: float = 0.0,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        if self.personal_keys:
            rule = "be empty for FedHeNN, whose clients keep a whole model each"
            raise ConfigError.rule("algorithm.client.personal", rule, list(arguments["personal"]))
        if repr_at == "code_swapped":
            self._check_swapped()
        self.kernel, self.sigma_factor, self.hsic = kernel, sigma_factor, hsic
        self.rad_batch, self.rad_every = rad_batch, rad_every
        self.repr_at, self.logits_dropout = repr_at, logits_dropout
        self._initial = snapshot(self.model)
        self._forget()
        # Layers in which the inputs of a batch meet: these see all inputs of a step at once.
        mixing = (nn.modules.batchnorm._NormBase, Scramble)
        self._divisible = not any(isinstance(module, mixing) for module in self.model.modules())
        self._num_steps = self._num_terms = self._num_targets = 0

    @property
    def _network(self) -> Network:
        return cast(Network, self.model)

    def _check_swapped(self) -> None:
        classes = self._network.num_classes
        if self._network.last_layer.in_features < classes:
            rule = f"be another where the penultimate output is narrower than the {classes} classes"
            raise ConfigError.rule("algorithm.client.repr_at", rule, "code_swapped")
        if self.softmax_scope != "all":
            rule = "be all where algorithm.client.repr_at is code_swapped"
            raise ConfigError.rule("algorithm.client.softmax_scope", rule, self.softmax_scope)

    def receive(self, payload: AlignedWeights, memory: dict[str, Tensor] | None) -> None:
        """Become one client: the server's weights where it sends some, else the client's own."""
        self._sent = payload
        copy_into(self.model, payload.params or memory or self._initial)

    def become(self, payload: AlignedWeights | None, memory: dict[str, Tensor] | None) -> None:
        """Take a client's own last model, before its first turn the one that it would start from."""
        copy_into(self.model, memory or (payload.params if payload else {}) or self._initial)

    def upload(self) -> tuple[AlignedWeights, dict[str, Tensor]]:
        """Give the weights to the server and to the client's memory."""
        params = snapshot(self.model)
        self._forget()
        return AlignedWeights(params), params

    def _forget(self) -> None:
        """Drop what a turn shares: modules of a pool wait for their next one, and targets of m x m would add up."""
        self._sent = AlignedWeights({})
        self._inputs, self._target = torch.empty(0), Kernel(torch.empty(0), dense=False)
        self._whole: Target | None = None

    def prepare(self, batches: Any) -> Any:
        """Fix the turn's inputs and, where the server sent none, the target: that of the received model."""
        self._num_steps = self._num_terms = self._num_targets = 0
        if self._sent.inputs is not None:
            self.to(self._sent.inputs.device)
            self._inputs = self.laid_out(self.plain(self._sent.inputs))
            self._target = self._sent.target or self._own_target()
            self._whole = None if self._draws else Target(self._target, self.hsic)
        return batches

    @property
    def _draws(self) -> bool:
        """Whether a step takes some of the shared inputs, not all of them."""
        return self.rad_batch is not None and self.rad_batch < len(self._inputs)

    @torch.no_grad()
    def _own_target(self) -> Kernel:
        self._num_targets = len(self._inputs)
        self.eval()
        part = self.rad_batch or len(self._inputs)
        representation = represented(self._represented, self._inputs, part)
        self.train()
        return kernel_of(representation, self.kernel, self.sigma_factor)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + eta_t * (1 - CKA(K_k, Kbar))``."""
        loss = super().loss(batch)
        has_term = self._sent.inputs is not None and self._num_steps % self.rad_every == 0
        self._num_steps += 1
        return loss + self._sent.eta * self.distance() if has_term else loss

    def distance(self) -> Tensor:
        """``1 - CKA(K_k[R], Kbar[R, R])`` for a random part R of the shared inputs, a scalar."""
        if self._whole is not None:
            return 1.0 - self._whole.cka(self._kernel(self._inputs))
        rows = torch.randperm(len(self._inputs))[: self.rad_batch].to(self._inputs.device)
        return 1.0 - cka(self._kernel(self._inputs[rows]), self._target.restrict(rows), self.hsic)

    def _kernel(self, inputs: Tensor) -> Kernel:
        """Give K of inputs (n, ...) by the model as it is."""
        self._num_terms += len(inputs)
        return kernel_of(self._represented(inputs), self.kernel, self.sigma_factor)

    def _represented(self, inputs: Tensor) -> Tensor:
        """Represent inputs (n, ...), part by part, as (n, d)."""
        whole = not self._divisible or inputs.device.type != "cpu"
        return torch.cat([self.represent(part) for part in inputs.split(len(inputs) if whole else PART)])

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...); under ``code_swapped`` the penultimate output (B, d)."""
        if self.repr_at == "code_swapped":
            return self._network.last_input(self.laid_out(inputs))
        return self._logits(inputs)

    def represent(self, inputs: Tensor) -> Tensor:
        """Representation (B, d) of inputs (B, ...)."""
        if self.repr_at == "penultimate":
            return super().represent(inputs)
        if self.repr_at == "features":
            return self._network.feature_vector(self.laid_out(inputs))
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
        metrics["flops"] += self._num_terms * self.flops_per_example
        metrics["flops"] += self._num_targets * self.forward_flops_per_example
        return metrics
