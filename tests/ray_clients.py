"""Client halves that do harm, for workers that are processes of their own; they are imported there."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from fedfeat.client import ClientModule
from fedfeat.errors import UserError


class _Harmful(ClientModule):
    """FedAvg's, which knows the client by its number of examples and harms at the second batch of a fit."""

    def __init__(self, *args: Any, folder: str, victim: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.folder, self.victim = Path(folder), victim

    def begin_turn(self, turn):
        self.size = int(turn.class_counts.sum())

    def training_step(self, batch, batch_idx):
        if batch_idx == 1:
            self.harm()
        return super().training_step(batch, batch_idx)

    def first(self, name: str) -> bool:
        """Whether nobody has asked for this name before, in any process."""
        try:
            (self.folder / name).open("x").close()
        except FileExistsError:
            return False
        return True

    def harm(self) -> None:
        raise NotImplementedError


class Killed(_Harmful):
    """Two fits end with SIGKILL of their process, the second perhaps when it is run again."""

    def harm(self):
        if self.first("first") or self.first("second"):
            os.kill(os.getpid(), signal.SIGKILL)


class Deadly(_Harmful):
    """One client, that with ``victim`` examples, kills every process in which it trains."""

    def harm(self):
        if self.size == self.victim:
            (self.folder / f"killed-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Failing(_Harmful):
    """The same client raises an error."""

    def harm(self):
        if self.size == self.victim:
            raise ValueError("out of luck\nand more")


class Unbuildable(_Harmful):
    """It can be built in the process of the number ``victim`` only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if os.getpid() != self.victim:
            raise UserError("trainer must fit every node, but it does not.")


class Slow(_Harmful):
    """Every fit takes its time until the run, in ``folder``, has a checkpoint to go on from."""

    def harm(self):
        if not any(self.folder.glob("checkpoints/*.json")):
            time.sleep(0.25)


class Stuck(_Harmful):
    """The first fit on the node that the file ``node`` names never ends; those on others wait until it has begun."""

    def harm(self):
        import ray

        there = ray.get_runtime_context().get_node_id() == (self.folder / "node").read_text()
        if there and self.first("stuck"):
            time.sleep(3600)
        while not (self.folder / "stuck").exists():
            time.sleep(0.01)
