"""A worker in a process of its own on some node, as `executors.ray` starts them."""

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedfeat.clients.host import keep_freed_memory
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError
from fedfeat.executors.on_ray.wire import Flat, Parcel, pack, put_together, unpack


class Seat:
    """Runs turns, one at a time."""

    _worker: Worker
    _device: torch.device

    def open(
        self, paths: Sequence[str], trainer: LocalTrainer, num_threads: int, build_worker: Parcel
    ) -> int:
        """Build the worker.

        Args:
            paths: Where to look for modules that this process does not find by itself.
            trainer: The Trainer of local fits; it gets the one device that this process sees.
            num_threads: CPU threads of the fits.
            build_worker: Makes the worker, with ``trainer`` as an argument.

        Returns:
            The number of this process.
        """
        sys.path.extend(path for path in paths if path not in sys.path)
        torch.set_num_threads(num_threads)
        keep_freed_memory()
        # A new one and not the one that was sent: building it sets what is common to a process.
        own = replace(trainer, devices=1, num_threads=num_threads)
        self._device = own.device()
        self._worker = unpack(build_worker, self._device)(trainer=own)
        return os.getpid()

    def turn(
        self, method: str, task: Parcel, record: bytes, tensors: list[Flat], *inputs: list[Flat]
    ) -> Parcel:
        """Run one turn.

        Args:
            method: Of `Worker`.
            task: The task without its payload.
            record: The payload without its tensors, see `wire.take_apart`.
            tensors: They.
            inputs: Further arguments of the method, a tensor each.

        Returns:
            What the method gives, or the error of a client that has failed.
        """
        payload = put_together(record, tensors, self._device)
        own = unpack(task, self._device)._replace(payload=payload)
        more = [one.tensor(self._device) for (one,) in inputs]
        try:
            found: Any = getattr(self._worker, method)(own, *more)
        except ClientError as error:
            # Causes are left behind when an error travels, notes are not.
            error.add_note("".join(traceback.format_exception(error)))
            found = error
        return pack(found)
