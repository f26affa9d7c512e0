"""FedDF: Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, Alg. 1 and 3.

    server: each round: S <- sample clients;  for k in S:  send x^p of its architecture p;  receive x_k
            for each architecture p that S has, S^p its clients:
                x^p <- sum over S^p of n_k / (sum_j n_j) * x_k
                for N steps over unlabelled inputs d:
                    x^p <- x^p - eta * grad KL( softmax(1/|S| sum over S of f(x_k; d)) || softmax(f(x^p; d)) )
    client: as FedAvg

Algorithm 1 has one architecture, Algorithm 3 several. Every student learns from all clients' models, the teachers, of
whatever architecture. Their mean does not change within a round: it is computed once for all inputs, as models arrive.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from fedfeat.algorithms.distillation import Distillation, Ensemble, Mean, distil
from fedfeat.algorithms.shared_inputs import check_one_order, check_source
from fedfeat.config.conditions import Count, Natural, Positive
from fedfeat.errors import ConfigError
from fedfeat.models.flops import forward_flops, training_flops
from fedfeat.models.grouped import refuse_groups
from fedfeat.models.network import Network
from fedfeat.models.policy import tensor_policies
from fedfeat.params import copy_into, full, select, snapshot
from fedfeat.seeding import derive_seed
from fedfeat.server import Around, AveragingServer
from fedfeat.types import Federation, Params, SentTo, Setting, Update, Weights

ALL = 2**62
"""More examples than there are."""


class FedDFState(NamedTuple):
    """State of the server.

    Attributes:
        seed: The experiment's seed.
        round_idx: The round.
        students: By architecture, the state of the server half that averages its clients.
        first: By architecture, its first client.
    """

    seed: int
    round_idx: int
    students: dict[str, Any]
    first: dict[str, int]


class FedDFServer(Around):
    """Let another server half average the clients of each architecture, and distil all clients' models into the mean.

    Args:
        average: The server half that averages.
        source: Where the unlabelled inputs come from, see `types.Source`; never from the test set.
        public_size: At most so many of them, drawn anew for every round.
        steps: N at most; 0 is what the average gives.
        batch_size: Inputs of a step.
        lr: First learning rate of Adam, which falls to 0 over N steps along a half cosine.
        temperature: T, by which the logits of teachers and student are divided.
        teacher_mean: Of the teachers' ``logits`` (the paper), or of their ``probabilities``, which has the gradients
            of the mean of their divergences.
        watch: What is looked at: the ``loss`` of the steps, or the accuracy on the clients' ``validation`` examples.
        look_every: Steps between two looks.
        patience: Steps without a better one after which it stops; None never does.
        keep: Whether the ``last`` student counts, or the ``best`` that was looked at.
    """

    def __init__(
        self,
        average: AveragingServer,
        source: Literal["public", "heldout", "train_pool"] = "public",
        public_size: Count = 50_000,
        steps: Natural = 10_000,
        batch_size: Count = 128,
        lr: Positive = 0.001,
        temperature: Positive = 1.0,
        teacher_mean: Mean = "logits",
        watch: Literal["loss", "validation"] = "loss",
        look_every: Count = 100,
        patience: Count | None = 1000,
        keep: Literal["last", "best"] = "best",
    ) -> None:
        super().__init__(average)
        if average.accepts_changing:
            rule = "average whole networks for FedDF, whose students are whole"
            raise ConfigError.rule("algorithm.server.average", rule, type(average).__name__)
        self.accepts_unequal = self.needs_whole_model = self.rebuilds_networks = True
        # Teachers compute with what clients send, before any average takes statistics.
        self.statistics = 0
        self.source, self.public_size, self.teacher_mean, self.watch = (
            source,
            public_size,
            teacher_mean,
            watch,
        )
        self.course = Distillation(steps, batch_size, lr, temperature, look_every, patience, keep)

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Refuse what there are no examples for, and networks of which clients may have a part."""
        super().check(model, setting)
        refuse_groups(model, "for FedDF, whose teachers know every class")
        if self.course.steps:
            check_one_order("the distillation", setting)
        check_source("algorithm.server.source", self.source, setting)
        if self.watch == "loss":
            return
        if "heldout" not in setting.sources:
            raise ConfigError.rule(
                "algorithm.server.watch", "be loss where partition.val_fraction is 0", self.watch
            )
        if self.source == "heldout":
            raise ConfigError.rule(
                "algorithm.server.source", "be another where watch is validation", self.source
            )

    def init(self, model: nn.Module, federation: Federation) -> FedDFState:
        """Start every architecture from its common initial weights."""
        networks = federation.networks
        students, first = dict[str, Any](), dict[str, int]()
        for client_id in range(federation.num_clients):
            key = networks.key(client_id)
            name = name_of(key)
            if first.setdefault(name, client_id) != client_id:
                continue
            own = model if key is None else networks.build(key)
            policies = federation.policies if key is None else tensor_policies(own, ())
            students[name] = self.average.init(own, federation._replace(policies=policies))
        return FedDFState(federation.seed, 0, students, first)

    def averages(self, state: FedDFState, client_id: int | None = None) -> Any:
        """Give the student of the client's architecture, or the server's own, of which there is none in a pool."""
        key = None if client_id is None else self.site.networks.key(client_id)
        return state.students.get(name_of(key))

    def aggregate(self, state: FedDFState, updates: Iterable[Update]) -> FedDFState:
        """Average by architecture, then distil; an architecture without an update stays as it is."""
        if not self.course.steps:
            students = self._averaged(state, updates)
            return state._replace(round_idx=state.round_idx + 1, students=students)
        inputs, _ = self.site.examples(self.source, self.public_size, state.round_idx)
        ensemble = Ensemble(inputs, self.site.plain, self.course.temperature, self.teacher_mean)
        taught: dict[str, Hashable] = {}
        students = self._averaged(state, self._teaching(updates, ensemble, len(inputs), taught))
        for name, key in taught.items():
            start = self.average.params(students[name])
            found = self._distilled(state, key, start, inputs, ensemble.probabilities())
            students[name] = self.average.with_params(students[name], found)
        return state._replace(round_idx=state.round_idx + 1, students=students)

    def _averaged(self, state: FedDFState, updates: Iterable[Update]) -> dict[str, Any]:
        """Average; updates of one architecture alone are taken as they come."""
        if len(state.students) == 1:
            return {name: self.average.aggregate(own, updates) for name, own in state.students.items()}
        by_name: dict[str, list[Update]] = {name: [] for name in state.students}
        for update in updates:
            by_name[name_of(self.site.networks.key(update.client_id))].append(update)
        return {name: self.average.aggregate(own, by_name[name]) for name, own in state.students.items()}

    def _teaching(
        self, updates: Iterable[Update], ensemble: Ensemble, num_inputs: int, taught: dict[str, Hashable]
    ) -> Iterator[Update]:
        """Pass updates on, add their models to the ensemble and note their architectures, in place."""
        for update in updates:
            key = self.site.networks.key(update.client_id)
            teacher = self._network(key, update.payload.params)
            with self.site.autocast():
                ensemble.add(teacher)
            self.site.spend(float(forward_flops(teacher)) * num_inputs)
            taught.setdefault(name_of(key), key)
            yield update

    def _distilled(
        self, state: FedDFState, key: Hashable, start: Params, inputs: Tensor, targets: Tensor
    ) -> Params:
        """Give a student's tensors after the distillation; what it draws is drawn at the round's address."""
        # Adam's second moments are below what half precision can hold.
        wide = {
            name: full(tensor) if tensor.is_floating_point() else tensor for name, tensor in start.items()
        }
        student, device = self._network(key, wide), self.site.device
        address = derive_seed(state.seed, "distillation", state.round_idx)

        def said(chosen: Tensor) -> Tensor:
            with self.site.autocast():
                return student(self._read(inputs[chosen.to(inputs.device)], student))

        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(address)
            order = torch.Generator().manual_seed(address)
            score = self._score(student, state.round_idx)
            steps = distil(student, said, targets, self.course, order, score)
        per_step = min(self.course.batch_size, len(inputs))
        self.site.spend(float(training_flops(student)) * steps * per_step)
        return {
            name: tensor.to(start[name].dtype) for name, tensor in select(snapshot(student), start).items()
        }

    def _score(self, student: Network, round_idx: int) -> Callable[[], float] | None:
        """Give what looks at a student; None for its loss."""
        if self.watch == "loss":
            return None
        return partial(self._accuracy, student, *self.site.examples("heldout", ALL, round_idx))

    @torch.no_grad()
    def _accuracy(self, student: Network, inputs: Tensor, labels: Tensor) -> float:
        self.site.spend(float(forward_flops(student)) * len(inputs))
        student.eval()
        with self.site.autocast():
            parts = [student(self._read(part, student)).argmax(1) for part in inputs.split(500)]
        return float((torch.cat(parts) == labels).double().mean())

    def _read(self, inputs: Tensor, student: Network) -> Tensor:
        """Turn stored inputs into what a student reads, in its type where they are numbers with a point."""
        found = self.site.plain(inputs)
        return found.to(next(student.parameters()).dtype) if found.is_floating_point() else found

    def _network(self, key: Hashable, params: Params) -> Network:
        """Build the network of an architecture, with these tensors and their type, where the server computes."""
        dtype = next(tensor.dtype for tensor in params.values() if tensor.is_floating_point())
        network = cast(Network, self.site.networks.build(key)).to(self.site.device, dtype)
        copy_into(network, params)
        return network

    def global_payload(self, state: FedDFState) -> Weights | None:
        """Give the student where there is one architecture, the server's own."""
        return None if self.averages(state) is None else super().global_payload(state)

    def further_payloads(self, state: FedDFState) -> dict[str, SentTo]:
        """Give the students of a pool, each in the network of its first client."""
        return {name: SentTo(k, self.broadcast(state, k)) for name, k in state.first.items() if name}

    def newcomer_payload(self, state: FedDFState) -> Weights | None:
        """Give the same; in a pool nothing is for everyone."""
        return None if self.averages(state) is None else super().newcomer_payload(state)


def name_of(key: Hashable) -> str:
    """Name an architecture by its key; the server's own is nameless."""
    return "" if key is None else str(key)
