"""Clients' turns on workers of a Ray cluster: the cores and GPUs of this machine, or of several."""

import logging
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from fedfeat.clients.host import num_cores
from fedfeat.clients.worker import Worker
from fedfeat.config.conditions import Count, Text, UnitInterval
from fedfeat.errors import ClientError, ConfigError, UserError
from fedfeat.executors.base import Executor
from fedfeat.executors.schedule import Window, costs_of
from fedfeat.seeding import derive_seed
from fedfeat.types import Answer, Task, Update

try:
    import ray
except ModuleNotFoundError as error:
    raise UserError(
        "executor must be another one where Ray is not installed (uv sync --extra ray installs it), but it is 'ray'."
    ) from error

from fedfeat.executors.on_ray.actor import Seat
from fedfeat.executors.on_ray.cluster import Cluster, Needs
from fedfeat.executors.on_ray.pool import Lost, Pool
from fedfeat.executors.on_ray.wire import Flat, Parcel, pack, take_apart, unpack

_log = logging.getLogger("fedfeat")

# Payloads that are held for the clients to come, which may get the same tensors: a server may have several models.
_PAYLOADS = 4
# A worker that dies with a client may be its victim (out of memory) or that of something else.
_DEATHS = 3


class _Call(NamedTuple):
    """A turn as it is sent, and sent again.

    Attributes:
        client_id: The client.
        round_idx: The round.
        arguments: Of `Seat.turn`.
    """

    client_id: int
    round_idx: int
    arguments: tuple[Any, ...]


@dataclass
class _Job:
    """Turns of one kind: those that have not ended are in ``calls``, those under way in ``running``."""

    method: str
    turns: Sequence[Task]
    window: Window
    inputs: list[Any]
    calls: dict[int, _Call] = field(default_factory=dict)
    running: dict[Any, int] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    deaths: Counter[int] = field(default_factory=Counter)

    def next(self) -> int | None:
        """Give the turn to start now."""
        return self.again.pop(0) if self.again else self.window.next()

    def put(self, turn: int, result: Any) -> None:
        """Take a turn's result."""
        del self.calls[turn]
        self.window.put(turn, result)


class RayExecutor(Executor):
    """Workers in processes of their own, which Ray places on the nodes of a cluster.

    The data and what many clients receive alike go to every node once. A turn whose worker or node is lost is run
    again. What is asked of the server's model is done in this process.

    Args:
        build_worker: Makes a worker, also with another ``trainer`` as argument.
        num_workers: Workers; None is as many as fit the cluster. No more are started than there are clients.
        threads_per_worker: CPU threads of each; None is those of the trainer, or 1.
        gpus_per_worker: GPUs of each, at most 1: 0.25 puts four workers on every GPU. None is 1 where fits run on
            GPUs, else 0.
        address: Of a running cluster that this machine is a node of, or ``auto``; None starts one of this machine.
        window: How many turns from the oldest unfinished one on may be started, which bounds the results that are
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
        self._payloads: OrderedDict[tuple[int, ...], tuple[list[Tensor], Any]] = OrderedDict()

    def _check(self, on_gpu: bool) -> None:
        gpus, trainer = self._needs.gpus, self.worker.trainer
        if on_gpu and not 0 < gpus <= 1:
            rule = "be above 0 and at most 1 where fits run on GPUs (trainer=cpu runs them on the CPU)"
            raise ConfigError.rule("executor.gpus_per_worker", rule, gpus)
        if not on_gpu and gpus:
            device = self.worker.data.device.type
            rule = f"be 0 or null where fits run on the device {device!r}"
            raise ConfigError.rule("executor.gpus_per_worker", rule, gpus)
        if self.worker.lightning.world_size > 1:
            raise ConfigError.rule("trainer.devices", "be 1 for executor=ray", trainer.devices)

    def start(self) -> None:
        """Connect to the cluster and start the workers; turns begin when the first of them is ready."""
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
        self._payloads.clear()
        self._cluster.close()

    def fit(self, turns: Sequence[Task]) -> Iterator[Update | ClientError]:
        """Fit the clients, the longest first."""
        return self._run("fit", turns)

    def evaluate(self, turns: Sequence[Task]) -> Iterator[dict[str, float]]:
        """Score each client's own model on its own test part."""
        return self._run("evaluate_client", turns)

    def answer(self, turns: Sequence[Task], inputs: Tensor) -> Iterator[Answer]:
        """Have clients answer on a survey's inputs (m, ...)."""
        return self._run("answer", turns, inputs)

    def _pool_of(self, size: int) -> Pool:
        """Put what workers are built of into the object store, and start them."""
        dataset = self.worker.data.dataset
        fixed = [part for split in (dataset.train, dataset.test) for part in (split.inputs, split.labels)]
        built_of = ray.put(pack(self._build_worker, fixed))
        needs = self._needs
        # max_restarts: Ray would start a lost one anew by itself, without its first call.
        kind = ray.remote(num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0)(Seat)
        return Pool(kind, (sys.path, self.worker.trainer, needs.cpus, built_of), size)

    def _run(self, method: str, turns: Sequence[Task], *inputs: Tensor) -> Iterator[Any]:
        """Have the workers run all turns and give the results in cohort order."""
        if not len(turns):
            return
        assert self._pool is not None
        window = Window(costs_of(turns), self._window or 4 * self._pool.size)
        job = _Job(method, turns, window, [ray.put([Flat.of(one)]) for one in inputs])
        try:
            while not window.done:
                self._fill(job, self._pool)
                self._collect(job, *self._pool.wait())
                self._fill(job, self._pool)
                yield from map(partial(self._opened, method), window.ready())
        finally:
            self._payloads.clear()

    def _fill(self, job: _Job, pool: Pool) -> None:
        while pool.has_idle:
            turn = job.next()
            if turn is None:
                return
            if turn not in job.calls:
                job.calls[turn] = self._call(job.turns[turn])
            reference = pool.call(job.method, *job.calls[turn].arguments, *job.inputs)
            job.running[reference] = turn

    def _call(self, task: Task) -> _Call:
        record, tensors = take_apart(task.payload)
        arguments = (pack(task._replace(payload=None)), record, self._sent(tensors))
        return _Call(task.client_id, task.round_idx, arguments)

    def _sent(self, tensors: list[Tensor]) -> Any:
        """Put tensors into the object store; those that come again soon, such as the server's weights, once."""
        key = tuple(map(id, tensors))
        if key not in self._payloads:
            # The tensors are kept beside the reference, so that no others get these ids.
            self._payloads[key] = tensors, ray.put([Flat.of(one) for one in tensors])
            if len(self._payloads) > _PAYLOADS:
                self._payloads.popitem(last=False)
        self._payloads.move_to_end(key)
        return self._payloads[key][1]

    def _collect(self, job: _Job, reference: Any, found: Any) -> None:
        """Take a result, unless it is of a worker that has started or of a job that was given up."""
        turn = job.running.pop(reference, None)
        if turn is None:
            return
        if isinstance(found, Lost):
            call = job.calls[turn]
            job.deaths[turn] += 1
            if job.deaths[turn] < _DEATHS:
                _log.warning(
                    "A worker of client %d was lost; it runs again. %s", call.client_id, found.reason
                )
                job.again.append(turn)
                return
            found = self._given_up(call, found)
        job.put(turn, found)

    def _given_up(self, call: _Call, lost: Lost) -> ClientError:
        seed = derive_seed(self.worker.settings.seed, "fit", call.round_idx, call.client_id)
        return ClientError(
            f"Client {call.client_id} failed in round {call.round_idx + 1} (seed {seed}): "
            f"its worker died {_DEATHS} times, at last with: {lost.reason}"
        )

    def _opened(self, method: str, result: Any) -> Any:
        """Give a result when its time has come; errors other than those of a fit are raised."""
        found = unpack(result, self.worker.data.device) if isinstance(result, Parcel) else result
        if isinstance(found, Exception) and not (method == "fit" and isinstance(found, ClientError)):
            raise found
        return found
