"""Many clients in one fit: their models stacked along a new axis, step for step what they would do alone."""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from fedfeat.clients.modules import MAX_ARCHITECTURES
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import cause_of
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Positive
from fedfeat.errors import ClientError
from fedfeat.executors.base import Course
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.stackable import check_stackable, probe
from fedfeat.executors.stacked.stacking import gradients
from fedfeat.executors.stacked.states import clock
from fedfeat.executors.stacked.turns import chains, fit_stacked, has_phases, phases_of
from fedfeat.files import fields_of, write_once
from fedfeat.types import Update

_log = logging.getLogger("fedfeat")

FILE = "stacked.json"
"""File of a run directory: how many clients are fitted at once."""

# Tensors of the size of the model that a client in training has at most: weights, gradients, two of the optimizer
# (Adam's), what it received, and temporary ones of a step.
_MODELS = 6

# Activations are kept for the backward pass, which makes gradients of as much.
_ACTIVATIONS = 2


class VectorizedExecutor(SerialExecutor):
    """One worker that fits as many clients at once as fit into memory.

    A step agrees with that of ``serial`` to rounding, for sums are in another order. In float32 whole runs part where a
    rounding decides on which side of a kink an activation lies; in float64 (`trainer.precision=64-true`) they agree to
    some 1e-15.

    Args:
        build_worker: Makes the worker.
        memory_mb: What the clients of one fit may take where they train, by a rough count of weights and activations;
            None: 1,024 on the CPU, on a GPU four fifths of what is free there.
    """

    def __init__(self, build_worker: Callable[[], Worker], memory_mb: Positive | None = None) -> None:
        self.worker = build_worker()
        self._probed = lru_cache(MAX_ARCHITECTURES)(partial(probe, self.worker))
        check_stackable(self.worker, "vectorized", self._probed)
        compiled = self.worker.trainer.compile
        self._differentiate = torch.compile(gradients, dynamic=False) if compiled else gradients
        batch = self.worker.data.largest_batch(self.worker.settings.batch_size)
        model = sum(t.numel() * t.element_size() for t in self.worker.module.state_dict().values())
        saved = batch * self._probed(self.worker.module).saved_bytes
        self.bytes_per_client = int(_MODELS * model + _ACTIVATIONS * saved)
        device = self.worker.data.device
        self._as_is_free = memory_mb is None and device.type == "cuda"
        allowed = _allowed_bytes(device) if memory_mb is None else memory_mb * 2**20
        self.num_together = max(int(allowed) // max(self.bytes_per_client, 1), 1)

    def settle(self, run_dir: Path, course: Course) -> None:
        """Take as many clients at once as the run of the directory began with: sums of fewer round otherwise.

        Raises:
            CheckpointError: The file that tells is damaged.
        """
        path = run_dir / FILE
        if not path.exists():
            return
        with fields_of(path, "say how many clients are fitted at once") as fields:
            self.num_together = max(int(fields["num_together"]), 1)

    def note(self, run_dir: Path) -> None:
        """Keep the number where it follows from what was free on a GPU."""
        if self._as_is_free:
            write_once(run_dir / FILE, {"num_together": self.num_together}, indent=None)

    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Fit clients together; call any other method of the worker in cohort order."""
        return super().map(job, tasks, *shared) if job != "fit" else self._fit(tasks)

    def _fit(self, waiting: Sequence[Task]) -> Iterator[Update | ClientError]:
        """Fit the clients, those of one architecture together, as many at a time as fit into memory."""
        for start in range(0, len(waiting), self.num_together):
            stop = min(start + self.num_together, len(waiting))
            tasks = [waiting[position] for position in range(start, stop)]
            results: dict[int, Update | ClientError] = {}
            for group in self._groups(tasks):
                results.update(zip(group, self._together([tasks[i] for i in group]), strict=True))
            del tasks
            for position in range(len(results)):
                yield results.pop(position)

    def _groups(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Give the positions of tasks that can be one fit; clients without examples, which train nothing, alone."""
        worker = self.worker
        groups: dict[Hashable, list[int]] = {}
        for position, task in enumerate(tasks):
            key: Hashable = worker.networks.key(task.client_id, task.round_idx)
            if worker.settings.keep_optimizer and task.kept:
                key = key, clock(task.kept.optimizer)
            # Without drop_singleton every example is used; with it one alone is not.
            used = worker.data.num_examples(task.client_id) > int(worker.drop_singleton)
            groups.setdefault((True, key) if used else (False, position), []).append(position)
        return [part for group in groups.values() for part in self._in_step(group, tasks)]

    def _in_step(self, group: list[int], tasks: Sequence[Task]) -> list[list[int]]:
        """Part a group where clients that are ahead in one phase of their fits are behind in another."""
        module = self.worker.module_of(tasks[group[0]].client_id, tasks[group[0]].round_idx)
        if not has_phases(module):
            return [group]
        parts = chains([phases_of(self.worker, module, tasks[position]) for position in group])
        return [sorted(group[place] for place in part) for part in parts]

    def _together(self, tasks: Sequence[Task]) -> list[Update | ClientError]:
        if len(tasks) > 1:
            try:
                found = self._probed(self.worker.module_of(tasks[0].client_id, tasks[0].round_idx))
                return fit_stacked(self.worker, tasks, found.objective, self._differentiate)
            except Exception as error:
                # Whose fault it was, if anyone's, shows when everyone trains alone.
                _log.warning(
                    "%d clients are fitted one after the other, for together: %s", len(tasks), cause_of(error)
                )
        return [self.here("fit", task) for task in tasks]


def _allowed_bytes(device: torch.device) -> float:
    """Give what the clients of one fit may take where nobody says it: a share of a GPU that holds the data already."""
    return 0.8 * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2.0**30
