"""A worker: everything that a turn of a client needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer, begin_fit, quiet
from fedfeat.clients.modules import ModulesOfClients
from fedfeat.clients.optimizers import kept_tensors, optimizer_state
from fedfeat.clients.scoring import own_parts, part_means, score_examples
from fedfeat.clients.tasks import Scores, Task
from fedfeat.clients.turns import (
    TrainedTensors,
    WorkerSettings,
    become,
    cause_of,
    seed_global_generators,
    turn_of,
    uploaded,
)
from fedfeat.data.federated import FederatedData
from fedfeat.data.unlabelled import images_by_class
from fedfeat.errors import DIVERGED, ClientError
from fedfeat.features.diagnostics import AlignmentProbe, on_server_neurons
from fedfeat.features.preference import Preferences
from fedfeat.models.freezing import has_batch_norm
from fedfeat.models.network import Network
from fedfeat.params import select
from fedfeat.seeding import derive_seed
from fedfeat.tree import is_finite
from fedfeat.types import Answer, Kept, Networks, Turn, Update

if TYPE_CHECKING:
    from fedfeat.types import Params, Tensors

T = TypeVar("T", Update, Answer)


class Worker(ModulesOfClients):
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
        super().__init__(data, networks, build_client, trainer, settings.seed)
        self.settings, self.probe = settings, probe
        self.lightning = trainer.build()
        self.drop_singleton = any([has_batch_norm(module.model) for module in self.kinds()])

    def steps_per_epoch(self, client_id: int) -> int:
        """Optimizer steps that one pass over a client's training examples takes."""
        return max(len(self._batches(client_id, 0)), 1)

    def fit(self, task: Task) -> Update:
        """Run one client's local fit.

        Raises:
            ClientError: The fit failed, or left weights that are not finite.
        """
        return self._checked(task, partial(self._fit, task))

    def _checked(self, task: Task, turn: Callable[[], T]) -> T:
        try:
            found = turn()
        except Exception as error:
            # Its module may have been left in eval mode, in which the next client would train.
            self.module_of(task.client_id, task.round_idx).train()
            raise self.failure(task, cause_of(error)) from error
        if divergence := self.divergence(task, found):
            raise divergence
        return found

    def divergence(self, task: Task, found: Update | Answer) -> ClientError | None:
        """Give the error of a turn of which something that is not finite comes; None where all of it is."""
        if is_finite((found.payload, getattr(found, "kept", None))):
            return None
        own = f"its {type(found).__name__.lower()}"
        named = own if is_finite(task.payload) else "what the server has sent"
        return self.failure(task, f"{named} {DIVERGED}")

    def _fit(self, task: Task) -> Update:
        module = self.module_of(task.client_id, task.round_idx)
        turn = self.begin(module, task)
        batches = self._batches(task.client_id, task.round_idx)
        module.rank_share = batches.share if self.lightning.world_size > 1 else None
        with self.trainer.autocast(self.data.device):
            batches = module.prepare(batches)
        begin_fit(self.lightning, turn.num_steps, max(len(batches), 1))
        keeps = self.settings.keep_optimizer
        module.optimizer_state = optimizer_state(task.kept.optimizer) if keeps and task.kept else {}
        # Dropout and other draws from the global generator start at this turn's address.
        seed_global_generators(self.fit_seed(task))
        with quiet():
            self.lightning.fit(module, batches)
        turn = turn._replace(num_steps=self.lightning.global_step)
        state = kept_tensors(self.lightning.optimizers[0]) if keeps else {}
        return self.conclude(module, task, turn, TrainedTensors(module), state)

    def begin(self, module: ClientModule, task: Task) -> Turn:
        """Make a module the client of a task, ready for its fit."""
        # Of clients that train stacked, one module is each of them in turn.
        module.plain = partial(self.data.plain, client_id=task.client_id)
        turn = turn_of(module, task, become(module, task, module.receive), self.data, self.settings.seed)
        module.ready(turn)
        module.begin_turn(turn)
        return turn

    def conclude(
        self, module: ClientModule, task: Task, turn: Turn, tensors: Tensors, optimizer: Params | None = None
    ) -> Update:
        """Give what comes of a turn: of the trained tensors, and of the optimizer's where they are kept.

        The module holds the trained tensors too where it runs at its upload, or is scored.
        """
        # One by one or stacked, what an upload draws is its turn's.
        seed_global_generators(derive_seed(self.settings.seed, "upload", task.round_idx, task.client_id))
        payload, memory = self._uploaded(module, turn, tensors)
        personal = select(tensors["model"], module.personal_keys) if module.personal_keys else {}
        keeps = bool(personal or optimizer or memory is not None)
        kept = Kept(personal, memory, optimizer or {}) if keeps else None
        metrics = module.turn_metrics()
        if task.evaluate:
            metrics |= self.own_score(module, task.client_id)
        found = self.preferences(module, task.client_id) if task.probe else None
        return Update(task.client_id, self.data.num_examples(task.client_id), payload, kept, metrics, found)

    def _uploaded(self, module: ClientModule, turn: Turn, tensors: Tensors) -> tuple[Any, Any]:
        if not module.runs_at_upload:
            return uploaded(module, turn, tensors)
        with torch.no_grad(), self.evaluating(module):
            return uploaded(module, turn, tensors)

    def probe_images(self, client_id: int | None = None) -> list[Tensor]:
        """Give the images of each class that preferences are taken on, as a client sees them where one is named."""
        return self._drawn_images(client_id if self.data.permuted else None)

    @cached_property
    def _drawn_images(self) -> Callable[[int | None], list[Tensor]]:
        assert self.probe is not None
        # The last ones are kept: all clients have the same, but for those with an order of the pixels each.
        draw = partial(images_by_class, self.data, self.probe.images_per_class, self.settings.seed)
        return lru_cache(1)(draw)

    def preferences(self, module: ClientModule, client_id: int | None = None) -> Preferences:
        """Take the class preferences of a module's model, a client's or the server's, on the server's neurons."""
        assert self.probe is not None
        own, whole = module.to(self.data.device).model, self.module.model
        assert isinstance(own, Network)
        assert isinstance(whole, Network)
        return on_server_neurons(self.probe.preferences(own, self.probe_images(client_id)), own, whole)

    def evaluate_client(self, task: Task) -> dict[str, float]:
        """Score a client's own model on its own test part."""
        module = self.module_of(task.client_id, task.round_idx)
        become(module, task, module.recall)
        return self.own_score(module, task.client_id)

    def score_own(self, task: Task) -> Scores:
        """Score a client's own model, one that takes no data of the client's to make, on all test examples."""
        module = self.module_of(task.client_id, task.round_idx)
        become(module, task, module.recall)
        batches = self.data.test_batches(np.arange(self.data.num_test), self.settings.eval_batch_size)
        with self.evaluating(module):
            return score_examples(module.predict, batches)

    def score(self, payload: Any, indices: np.ndarray | None = None, client_id: int | None = None) -> Scores:
        """Score the server's model on test examples (all of them unless ``indices`` are given)."""
        self._become_server(payload)
        chosen = np.arange(self.data.num_test) if indices is None else indices
        batches = self.data.test_batches(chosen, self.settings.eval_batch_size, client_id)
        with self.evaluating(self.module):
            return score_examples(self.module, batches)

    def answer(self, task: Task, inputs: Tensor) -> Answer:
        """Have a client answer on a survey's inputs (m, ...), as they come from `FederatedData`, by its own model.

        Raises:
            ClientError: It cannot, or its answer is not finite.
        """
        return self._checked(task, partial(self._answer, task, inputs))

    @torch.no_grad()
    def _answer(self, task: Task, inputs: Tensor) -> Answer:
        module = self.module_of(task.client_id, task.round_idx).to(self.data.device)
        become(module, task, module.recall)
        self.adapt(module, task.client_id)
        with self.evaluating(module):
            found = module.answer(inputs, self.settings.eval_batch_size)
        flops, num_examples = module.answer_flops(len(inputs)), self.data.num_examples(task.client_id)
        return Answer(task.client_id, num_examples, found, flops)

    def _become_server(self, payload: Any) -> None:
        become(self.module, Task(0, 0, payload, None), self.module.receive)

    def observe(self, payload: Any) -> dict[str, Tensor]:
        """Give what the method watches in the server's model."""
        self._become_server(payload)
        return self.module.observe()

    def score_validation(self, payload: Any) -> Scores:
        """Score the server's model on all clients' validation examples."""
        self._become_server(payload)
        with self.evaluating(self.module):
            return score_examples(self.module, self.data.val_batches(self.settings.eval_batch_size))

    def own_score(self, module: ClientModule, client_id: int) -> dict[str, float]:
        """Score the client's own model, as the module stands, on what it has of `own_parts`."""
        parts = own_parts(self.data, client_id, self.settings.eval_batch_size)
        if parts:
            self.adapt(module, client_id)
        with self.evaluating(module):
            return part_means(module.predict, parts)

    def _batches(self, client_id: int, round_idx: int) -> Any:
        ranks = {"rank": self.lightning.global_rank, "world_size": self.lightning.world_size}
        address = client_id, self.settings.seed, round_idx, self.settings.batch_size
        return self.data.train_batches(*address, drop_singleton=self.drop_singleton, **ranks)

    def fit_seed(self, task: Task) -> int:
        """Give the seed of dropout and other draws in a fit."""
        return derive_seed(self.settings.seed, "fit", task.round_idx, task.client_id)

    def failure(self, task: Task, cause: str) -> ClientError:
        """Give the error of a turn; ``cause`` ends its sentence."""
        name, seed = f"Client {task.client_id}", self.fit_seed(task)
        return ClientError(f"{name} failed in round {task.round_idx + 1} (seed {seed}): {cause}.")
