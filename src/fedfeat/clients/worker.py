"""A worker: client modules, one per architecture, in which the clients take turns, and everything a turn needs."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer, begin_fit, quiet
from fedfeat.clients.networks import has_batch_norm
from fedfeat.clients.optimizer_state import optimizer_tensors, split_memory
from fedfeat.data.federated import FederatedData
from fedfeat.errors import ClientError
from fedfeat.features.alignment import centred_kernel_, represented
from fedfeat.features.diagnostics import AlignmentProbe, on_server_neurons
from fedfeat.features.preference import Preferences
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.network import Network
from fedfeat.seeding import derive_seed
from fedfeat.tree import is_finite
from fedfeat.types import Answer, Networks, Scores, Task, Update

# With more architectures than this the least recently used are built again at their next turn.
MAX_ARCHITECTURES = 32


@dataclass(frozen=True)
class WorkerSettings:
    """What every turn has in common.

    Attributes:
        seed: The experiment's seed.
        batch_size: Local batch size; None is the whole client.
        eval_batch_size: Batch size of evaluation; any value gives the same metrics.
        keep_optimizer: Whether optimizer state (momentum) survives from a client's turn to its next.
    """

    seed: int
    batch_size: int | None
    eval_batch_size: int
    keep_optimizer: bool


class Worker:
    """Runs single turns: fits, and scores of models.

    Args:
        data: The federation's data.
        networks: Which network each client runs.
        build_client: Makes the client half around a network.
        trainer: The Trainer of local fits.
        settings: What every turn has in common.
        probe: How class preferences are taken where a task asks for them.
    """

    def __init__(
        self,
        data: FederatedData,
        networks: Networks,
        build_client: Callable[..., ClientModule],
        trainer: LocalTrainer,
        settings: WorkerSettings,
        probe: AlignmentProbe | None = None,
    ) -> None:
        self.data, self.trainer, self.settings = data, trainer, settings
        self.networks, self.probe, self._build_client = networks, probe, build_client
        self.lightning = trainer.build()
        self._modules: OrderedDict[Hashable, ClientModule] = OrderedDict()
        self.module = self._make(None)
        self.drop_singleton = any([has_batch_norm(module.model) for module in self.kinds()])

    def kinds(self) -> list[ClientModule]:
        """Modules of all kinds of networks; what one of them refuses is then refused at the start."""
        if isinstance(self.module.model, GroupedNetwork):
            # Parts of it have its kinds of layers, and there may be thousands of them.
            return [self.module]
        clients = {self.networks.key(k): k for k in range(self.data.num_clients)}
        return [self.module_of(k) for k in clients.values()]

    def _make(self, key: Hashable) -> ClientModule:
        with torch.random.fork_rng(devices=[]):
            # What a method adds to the network has the same first weights in every process and architecture.
            torch.manual_seed(derive_seed(self.settings.seed, "method init"))
            module = self._build_client(
                model=self.networks.build(key), channels_last=self.trainer.channels_last
            )
        module.plain = self.data.plain
        if self.trainer.compile:
            module.model.compile()
        return module

    def module_of(self, client_id: int) -> ClientModule:
        """Give the module of a client's architecture; the least recently used of many are built again."""
        key = self.networks.key(client_id)
        if key is None:
            return self.module
        if key not in self._modules:
            self._modules[key] = self._make(key)
        self._modules.move_to_end(key)
        if len(self._modules) > MAX_ARCHITECTURES:
            self._modules.popitem(last=False)
        return self._modules[key]

    def steps_per_epoch(self, client_id: int) -> int:
        """Optimizer steps that one pass over a client's training examples takes."""
        return max(len(self._batches(client_id, 0)), 1)

    def fit(self, task: Task) -> Update:
        """Run one client's local fit.

        Raises:
            ClientError: The fit failed, or left weights that are not finite.
        """
        try:
            update = self._fit(task)
        except Exception as error:
            raise self.failure(task, cause_of(error)) from error
        if not is_finite(update.payload) or not is_finite(update.memory):
            raise self.failure(task, "its update holds values that are not finite")
        return update

    def _fit(self, task: Task) -> Update:
        module = self.module_of(task.client_id)
        memory, optimizer_state = split_memory(task.memory)
        module.receive(task.payload, memory)
        module.begin_turn(task.lr_factor, self.data.class_counts[task.client_id], self.data.device)
        batches = self._batches(task.client_id, task.round_idx)
        with self.trainer.autocast(self.data.device):
            batches = module.prepare(batches)
        begin_fit(self.lightning, module.local_steps(task.num_steps), max(len(batches), 1))
        if self.settings.keep_optimizer:
            module.optimizer_memory = optimizer_state
        # Dropout and other draws from the global generator start at this turn's address.
        _seed_global_generators(self.fit_seed(task))
        with quiet():
            self.lightning.fit(module, batches)
        payload, kept = module.upload()
        metrics = module.turn_metrics()
        if task.evaluate:
            metrics |= self.own_score(module, task.client_id)
        if self.settings.keep_optimizer:
            kept = (kept or {}) | optimizer_tensors(self.lightning.optimizers[0])
        found = self.preferences(module) if task.probe else None
        num_examples = self.data.num_examples(task.client_id)
        return Update(task.client_id, num_examples, payload, kept, metrics, found)

    @cached_property
    def _probe_images(self) -> list[Tensor]:
        assert self.probe is not None
        return self.data.images_by_class(self.probe.images_per_class, self.settings.seed)

    def preferences(self, module: ClientModule) -> Preferences:
        """Take the class preferences of a module's model, on the server's neurons."""
        assert self.probe is not None
        own, whole = module.to(self.data.device).model, self.module.model
        assert isinstance(own, Network)
        assert isinstance(whole, Network)
        return on_server_neurons(self.probe.preferences(own, self._probe_images), own, whole)

    def evaluate_client(self, task: Task) -> dict[str, float]:
        """Score a client's own model on its own test part."""
        module = self.module_of(task.client_id)
        module.become(task.payload, split_memory(task.memory)[0])
        return self.own_score(module, task.client_id)

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples (all of them unless ``indices`` are given)."""
        self.module.receive(payload, None)
        chosen = np.arange(self.data.num_test) if indices is None else indices
        batches = self.data.test_batches(chosen, self.settings.eval_batch_size, client_id)
        return self._score(self.module, batches)

    @torch.no_grad()
    def represent(self, task: Task, inputs: Tensor) -> Answer:
        """Represent unlabelled inputs (m, ...), as they come from `FederatedData`, by a client's own model."""
        module = self.module_of(task.client_id).to(self.data.device)
        module.become(None, split_memory(task.memory)[0])
        module.eval()
        with self.trainer.autocast(self.data.device):
            found = represented(
                lambda part: module.represent(self.data.plain(part)), inputs, self.settings.eval_batch_size
            )
        module.train()
        flops = len(inputs) * module.forward_flops_per_example
        return Answer(task.client_id, self.data.num_examples(task.client_id), centred_kernel_(found), flops)

    def observe(self, payload: Any) -> dict[str, Tensor]:
        """Give what the method watches in the server's model."""
        self.module.receive(payload, None)
        return self.module.observe()

    def score_validation(self, payload: Any) -> Scores:
        """Score the server's model on all clients' validation examples."""
        self.module.receive(payload, None)
        return self._score(self.module, self.data.val_batches(self.settings.eval_batch_size))

    def own_score(self, module: ClientModule, client_id: int) -> dict[str, float]:
        """Score a module as it stands on a client's test part; nothing where the client has none."""
        indices = self.data.test_indices(client_id)
        if not len(indices):
            return {}
        batches = self.data.test_batches(indices, self.settings.eval_batch_size, client_id)
        scores = self._score(module, batches)
        return {"own/acc": float(scores.correct.mean()), "own/loss": float(scores.losses.mean())}

    @torch.inference_mode()
    def _score(self, module: ClientModule, batches: Iterator[tuple[Tensor, Tensor]]) -> Scores:
        device = self.data.device
        module.to(device).eval()
        correct, losses = [], []
        with self.trainer.autocast(device):
            for inputs, labels in batches:
                logits = module(inputs).float()
                correct.append(logits.argmax(1) == labels)
                losses.append(nn.functional.cross_entropy(logits, labels, reduction="none"))
        module.train()
        return Scores(torch.cat(correct).double().cpu().numpy(), torch.cat(losses).double().cpu().numpy())

    def _batches(self, client_id: int, round_idx: int) -> Any:
        address = client_id, self.settings.seed, round_idx
        ranks = {"rank": self.lightning.global_rank, "world_size": self.lightning.world_size}
        batch_size, drop = self.settings.batch_size, self.drop_singleton
        return self.data.train_batches(*address, batch_size, drop_singleton=drop, **ranks)

    def fit_seed(self, task: Task) -> int:
        """Give the seed of dropout and other draws in a fit."""
        return derive_seed(self.settings.seed, "fit", task.round_idx, task.client_id)

    def failure(self, task: Task, cause: str) -> ClientError:
        """Give the error of a turn; ``cause`` ends its sentence."""
        name, seed = f"Client {task.client_id}", self.fit_seed(task)
        return ClientError(f"{name} failed in round {task.round_idx + 1} (seed {seed}): {cause}.")


def cause_of(error: Exception) -> str:
    """Give an error's type and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _seed_global_generators(seed: int) -> None:
    """As `torch.manual_seed`, which without a GPU formats a stack trace for later at every call (0.5 ms)."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
