"""A worker in a process of its own on some node, as `on_ray.executor` starts them."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from fedfeat.clients.host import keep_freed_memory
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.worker import Worker
from fedfeat.executors.codec import Packed, arguments_of, portable
from fedfeat.executors.job import attempt
from fedfeat.executors.on_ray.flat import Flat, pack, unpack


class WorkerActor:
    """Runs tasks, one at a time."""

    _worker: Worker
    _device: torch.device

    def open(
        self, paths: Sequence[str], trainer: LocalTrainer, num_threads: int, build_worker: Packed
    ) -> int:
        """Build the worker and give the number of this process.

        Args:
            paths: Where to look for modules that this process does not find by itself.
            trainer: The Trainer of local fits; it gets the one device that this process sees.
            num_threads: CPU threads of the fits.
            build_worker: Makes the worker, with ``trainer`` as an argument.
        """
        sys.path.extend(path for path in paths if path not in sys.path)
        torch.set_num_threads(num_threads)
        keep_freed_memory()
        # A new one and not the one that was sent: building it sets what is common to a process.
        own = replace(trainer, devices=1, num_threads=num_threads)
        self._device = own.device()
        self._worker = unpack(build_worker, self._device)(trainer=own)
        return os.getpid()

    def run(self, method: str, records: Sequence[bytes], *tensors: list[Flat]) -> Packed:
        """Run one task: give what a method of `Worker` gives or raises for arguments as in `codec.Packed`.

        The tensors of each record are an argument, for Ray fetches what is an argument by itself.
        """
        packed = map(Packed, records, tensors)
        arguments = arguments_of(unpack(one, self._device) for one in packed)
        return pack(portable(attempt(self._worker, method, arguments)))
