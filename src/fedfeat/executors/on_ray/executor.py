"""Clients' tasks on workers of a Ray cluster: the cores and GPUs of this machine, or of several."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from fedfeat.clients.host import num_cores
from fedfeat.clients.tasks import Task
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Count, Text, UnitInterval
from fedfeat.errors import ConfigError, UserError
from fedfeat.executors.base import Executor
from fedfeat.executors.codec import Packer
from fedfeat.executors.job import DEATHS, Job, costs_of

try:
    import ray
except ModuleNotFoundError as error:
    raise UserError(
        "executor must be another one where Ray is not installed (uv sync --extra ray installs it), but it is 'ray'."
    ) from error

from ray.exceptions import RayError

from fedfeat.executors.on_ray.actor import WorkerActor
from fedfeat.executors.on_ray.cluster import Cluster, Needs
from fedfeat.executors.on_ray.flat import CloudPickler, Flat, pack, unpack
from fedfeat.executors.on_ray.pool import Lost, Pool

_log = logging.getLogger("fedfeat")


class RayExecutor(Executor):
    """Workers in processes of their own, which Ray places on the nodes of a cluster.

    The data and what many clients receive alike go to every node once. A task whose worker or node is lost is run
    again. What is asked of the server's model is done in this process.

    Args:
        build_worker: Makes a worker, also with another ``trainer`` as argument.
        num_workers: Workers; None is as many as fit the cluster. No more are started than there are clients.
        threads_per_worker: CPU threads of each; None is those of the trainer, or 1.
        gpus_per_worker: GPUs of each, at most 1: 0.25 puts four workers on every GPU. None is 1 where fits run on
            GPUs, else 0.
        address: Of a running cluster that this machine is a node of, or ``auto``; None starts one of this machine.
        window: How many tasks from the oldest unfinished one on may be started, which bounds the results that are
            held; None is four for each worker.
    """

    def __init__(
        self,
        build_worker: Callable[..., Worker],
        num_workers: Count | None = None,
        threads_per_worker: Count | None = None,
        gpus_per_worker: UnitInterval | None = None,
        address: Text | None = None,
        window: Count | None = None,
    ) -> None:
        self.worker = build_worker()
        self._build_worker, self._num_workers, self._window = build_worker, num_workers, window
        on_gpu = self.worker.data.device.type == "cuda"
        threads = threads_per_worker or self.worker.trainer.num_threads or 1
        self._needs = Needs(threads, float(on_gpu) if gpus_per_worker is None else gpus_per_worker)
        self._check(on_gpu)
        self._cluster = Cluster(address)
        self._pool: Pool | None = None
        self._running: dict[Any, tuple[Job, int]] = {}

    def _check(self, on_gpu: bool) -> None:
        gpus, trainer = self._needs.gpus, self.worker.trainer
        if on_gpu and not 0 < gpus <= 1:
            rule = "be above 0 and at most 1 where fits run on GPUs (trainer=cpu runs them on the CPU)"
            raise ConfigError.rule("executor.gpus_per_worker", rule, gpus)
        if not on_gpu and gpus:
            rule = f"be 0 or null where fits run on the device {self.worker.data.device.type!r}"
            raise ConfigError.rule("executor.gpus_per_worker", rule, gpus)
        if self.worker.lightning.world_size > 1:
            raise ConfigError.rule("trainer.devices", "be 1 for executor=ray", trainer.devices)

    def start(self) -> None:
        """Connect to the cluster and start the workers; tasks begin when the first of them is ready."""
        asked, needs = self._num_workers, self._needs
        self._cluster.open(max(num_cores(), (asked or 1) * needs.cpus))
        try:
            room = self._cluster.room(needs)
            if not room:
                raise UserError(
                    "executor.threads_per_worker and executor.gpus_per_worker must fit a node of the Ray cluster, "
                    f"but none has {needs.cpus} CPU cores and {needs.gpus:g} GPUs."
                )
            size = min(asked or room, self.worker.data.num_clients)
            self._pool = self._pool_of(size)
        except BaseException:
            self._cluster.close()
            raise
        where = f"{needs.cpus} threads" + (f" and {needs.gpus:g} GPUs" if needs.gpus else "")
        _log.info("ray: %d workers of %s each%s", size, where, "" if room >= size else f", room for {room}")

    def close(self) -> None:
        """End the workers, and the cluster where it is our own."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self._running.clear()
        self._cluster.close()

    def map(self, job: str, tasks: Sequence[Task], *shared: Any) -> Iterator[Any]:
        """Have the workers call their method, for the longest tasks first."""
        assert self._pool is not None
        size, pack = self._window or 4 * self._pool.size, Packer(_carry, CloudPickler)
        own = Job(job, lambda place: (tasks[place], *shared), costs_of(tasks), size, pack)
        try:
            while not own.done:
                self._fill(own, self._pool)
                self._collect(*self._pool.wait())
                self._fill(own, self._pool)
                yield from own.results(self._opened)
        except (RayError, OSError):
            # Tensors cannot be put into the store of a node that has died.
            self._cluster.check()
            raise

    def _pool_of(self, size: int) -> Pool:
        """Put what workers are built of into the object store, and start them."""
        dataset = self.worker.data.dataset
        fixed = [part for split in (dataset.train, dataset.test) for part in (split.inputs, split.labels)]
        built_of = ray.put(pack(self._build_worker, fixed))
        needs = self._needs
        # max_restarts: Ray would start a lost one anew by itself, without its first call.
        kind = ray.remote(num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0)(WorkerActor)
        return Pool(kind, (sys.path, self.worker.trainer, needs.cpus, built_of), size, self._cluster.check)

    def _fill(self, job: Job, pool: Pool) -> None:
        while pool.has_idle:
            place = job.next()
            if place is None:
                return
            records, tensors = zip(*job.pack(job.arguments(place)), strict=True)
            self._running[pool.call(job.method, records, *tensors)] = job, place

    def _collect(self, reference: Any, found: Any) -> None:
        """Take a result, unless it is of a worker that has started."""
        if reference not in self._running:
            return
        job, place = self._running.pop(reference)
        if isinstance(found, Lost):
            task: Task = job.arguments(place)[0]
            if job.lose(place):
                told = "A worker of client %d was lost; it runs again. %s"
                _log.warning(told, task.client_id, found.reason)
                return
            reason = found.reason.rstrip(".")
            found = self.worker.failure(task, f"its worker died {DEATHS} times, at last with: {reason}")
        job.put(place, found)

    def _opened(self, result: Any) -> Any:
        return result if isinstance(result, Exception) else unpack(result, self.worker.data.device)


def _carry(tensors: Sequence[Tensor]) -> Any:
    """Put tensors into the object store."""
    return ray.put([Flat.of(tensor) for tensor in tensors]) if tensors else []
