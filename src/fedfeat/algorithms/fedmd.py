"""FedMD: Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019, Algorithm 1.

    transfer:  f_k trains on the client's own examples
    each round: S <- sample clients;  X_t <- some of the public inputs
        communicate:  k in S sends its scores f_k(X_t)
        aggregate:    server:  f <- 1/|S| sum over S of f_k(X_t)
        distribute:   send X_t, f
        digest:       f_k <- f_k - lr * grad |f_k(X_t) - f|     for some epochs over X_t
        revisit:      E epochs on its own examples

Scores are logits. No weights cross the wire, so clients may run any networks. Transfer learning is a client's first
turns: it trains on its own examples alone, and nobody hears it. Labels of the public set are never read.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.algorithms.distillation import divergence
from fedfeat.algorithms.prototype_clients import require_all_personal
from fedfeat.algorithms.shared_inputs import check_source
from fedfeat.client import ClientModule
from fedfeat.config.conditions import Count, Natural, Positive
from fedfeat.models.freezing import mixes_examples
from fedfeat.models.grouped import refuse_groups
from fedfeat.models.network import Network
from fedfeat.params import full
from fedfeat.server import Server
from fedfeat.types import Answer, Federation, Setting, Survey, Tensors, Turn, Update


class Consensus(NamedTuple):
    """Payload: down X_t and f, up nothing.

    Attributes:
        inputs: X_t as it is stored, (m, ...); None where nobody has been heard.
        scores: f of them, (m, C).
    """

    inputs: Tensor | None = None
    scores: Tensor | None = None


class ClassScores(NamedTuple):
    """An answer.

    Attributes:
        logits: f_k(X_t), (m, C); of a client in its first turns (0, C).
    """

    logits: Tensor


class TurnCount(NamedTuple):
    """A client's memory: how many turns it has had."""

    number: int


class FedMDClient(ClientModule):
    """Clients with models of their own, which fit the consensus on public inputs before they train.

    Args:
        pretrain_turns: A client's first turns, in which it only trains on its own examples.
        digest_epochs: Passes over X_t; 0 is local training.
        digest_batch: Inputs of a step.
        digest_lr: Learning rate of these steps, by a fresh optimizer of the kind of the fit's; None is the turn's.
        digest_loss: Of the logits: ``l1`` (diogenes0319/FedMD_clean), ``mse``, or ``kl`` of their softmaxes.
        arguments: As in `ClientModule`; ``personal`` is all.

    Raises:
        ConfigError: Some of the network is shared, or it has groups.
    """

    payload_type: ClassVar[type] = Consensus
    apart = None  # what is stacked has digested before

    def __init__(
        self,
        *,
        pretrain_turns: Natural = 1,
        digest_epochs: Natural = 1,
        digest_batch: Count = 256,
        digest_lr: Positive | None = None,
        digest_loss: Literal["l1", "mse", "kl"] = "l1",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        require_all_personal(self, arguments)
        refuse_groups(self.model, "for FedMD, whose clients score every class")
        self.pretrain_turns, self.digest_epochs, self.digest_batch = (
            pretrain_turns,
            digest_epochs,
            digest_batch,
        )
        self.digest_lr, self.digest_loss = digest_lr, digest_loss
        self._is_heard = False
        self._num_digested = 0.0

    def receive(self, payload: Consensus | None, memory: TurnCount | None) -> None:
        """Note whether the client's first turns are over; the network is its own."""
        self._is_heard = _turns(memory) >= self.pretrain_turns

    def recall(self, payload: Consensus | None, memory: TurnCount | None) -> None:
        """As `receive`: a client's model is its own whatever is sent."""
        self.receive(payload, memory)

    def answer(self, inputs: Tensor, part: int) -> ClassScores:
        """Give the scores of the inputs; none in the client's first turns."""
        if not self._is_heard:
            return ClassScores(
                inputs.new_empty(0, cast(Network, self.model).num_classes, dtype=torch.float32)
            )
        return ClassScores(torch.cat([full(self(self.plain(some))) for some in inputs.split(part)]).cpu())

    def answer_flops(self, num_inputs: int) -> float:
        """FLOPs of the scores; none where the client is not heard."""
        return super().answer_flops(num_inputs) if self._is_heard else 0.0

    def begin_turn(self, turn: Turn) -> None:
        """Digest, in the precision of the weights and without clipping, which are the fit's."""
        inputs, scores = turn.payload
        if self._digests(turn):
            self.to(turn.device).train()
            cuda = [turn.device] if turn.device.type == "cuda" else []
            # A fit's own draws are none of a digest's.
            with torch.random.fork_rng(devices=cuda):
                torch.manual_seed(turn.seed)
                self._digest(inputs.to(turn.device), scores.to(turn.device), turn.seed)

    def _digests(self, turn: Turn) -> bool:
        heard = _turns(turn.memory) >= self.pretrain_turns
        return heard and turn.payload.scores is not None and self.digest_epochs > 0

    def _digest(self, inputs: Tensor, scores: Tensor, seed: int) -> None:
        optimizer = self.new_optimizer(self.model, self.digest_lr or self.lr)
        generator = torch.Generator().manual_seed(seed)
        least = 2 if mixes_examples(self.model) else 1  # batch norm knows no variance of one
        for _ in range(self.digest_epochs):
            for chosen in torch.randperm(len(inputs), generator=generator).split(self.digest_batch):
                if len(chosen) < least:
                    continue
                own = chosen.to(inputs.device)
                logits = self(self.plain(inputs[own]))
                optimizer.zero_grad()
                distance(logits, scores[own], self.digest_loss).backward()
                optimizer.step()
        optimizer.zero_grad()

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Consensus, TurnCount]:
        """Give nothing, and count the turn."""
        digested = len(turn.payload.inputs) * self.digest_epochs if self._digests(turn) else 0
        self._num_digested = float(digested)
        return Consensus(), TurnCount(_turns(turn.memory) + 1)

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the digest."""
        metrics = super().turn_metrics()
        metrics["flops"] += self._num_digested * self.flops_per_example
        return metrics


def _turns(memory: TurnCount | None) -> int:
    return memory.number if memory else 0


def distance(logits: Tensor, scores: Tensor, loss: Literal["l1", "mse", "kl"]) -> Tensor:
    """Give the distance of logits (B, C) from scores (B, C), a mean over examples and, but for ``kl``, classes."""
    logits, scores = full(logits), full(scores)
    if loss == "l1":
        return functional.l1_loss(logits, scores)
    if loss == "mse":
        return functional.mse_loss(logits, scores)
    return divergence(logits, scores.softmax(1), temperature=1.0)


class FedMDState(NamedTuple):
    """State of the server.

    Attributes:
        inputs: X_t between survey and aggregation.
        scores: f, likewise.
    """

    inputs: Tensor | None = None
    scores: Tensor | None = None


class FedMDServer(Server):
    """Average what clients say of public inputs.

    Args:
        source: Where these come from, see `types.Source`; never from the test set.
        public_size: At most so many of them, drawn anew for every round.
        asked: Whom f is the mean of: the ``cohort``, or ``all`` clients.
    """

    payload_type: ClassVar[type] = Consensus
    accepts_unequal = True

    def __init__(
        self,
        source: Literal["public", "heldout", "train_pool"] = "public",
        public_size: Count = 5000,
        asked: Literal["cohort", "all"] = "cohort",
    ) -> None:
        self.public = Survey(source, public_size, asked, counted="answers")

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Refuse a source without examples."""
        check_source("algorithm.server.source", self.public.source, setting)

    def init(self, model: nn.Module, federation: Federation) -> FedMDState:
        """Start without anything common."""
        return FedMDState()

    def survey(self, state: FedMDState, round_idx: int) -> Survey:
        """Ask for scores in every round."""
        return self.public

    def hear(self, state: FedMDState, inputs: Tensor, answers: Iterable[Answer]) -> FedMDState:
        """Sum the scores up as they come; where nobody is heard, there is no consensus."""
        total, count = torch.zeros(()), 0
        for answer in answers:
            if len(answer.payload.logits):
                total, count = total + answer.payload.logits, count + 1
        return FedMDState(inputs, total / count) if count else FedMDState()

    def broadcast(self, state: FedMDState, client_id: int) -> Consensus:
        """Send X_t and f."""
        return Consensus(state.inputs, state.scores)

    def aggregate(self, state: FedMDState, updates: Iterable[Update]) -> FedMDState:
        """Drop X_t and f."""
        return FedMDState()

    def global_payload(self, state: FedMDState) -> None:
        """There is no common model."""

    def newcomer_payload(self, state: FedMDState) -> Consensus:
        """Give nothing: a client starts from its own initial model."""
        return Consensus()
