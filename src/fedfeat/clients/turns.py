"""How a client half is made and becomes a client, and what it has trained."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedfeat import tree
from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.tasks import Task
from fedfeat.config.made import held_to
from fedfeat.config.origin import own_place
from fedfeat.data.federated import FederatedData
from fedfeat.models.freezing import still_keys
from fedfeat.models.policy import DROPPED
from fedfeat.params import snapshot
from fedfeat.seeding import derive_seed
from fedfeat.types import Kept, Networks, Tensors, Turn

if TYPE_CHECKING:
    from fedfeat.types import Params

_NOTHING = Kept()


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


def make_module(
    build_client: Callable[..., ClientModule],
    networks: Networks,
    key: Hashable,
    trainer: LocalTrainer,
    seed: int,
) -> ClientModule:
    """Make a client half around the network of a key, for a Trainer and with the experiment's seed."""
    with torch.random.fork_rng(devices=[]):
        # What a method adds to the network has the same first weights in every process and architecture.
        torch.manual_seed(derive_seed(seed, "method init"))
        module = build_client(model=networks.build(key), channels_last=trainer.channels_last)
    held_to(ClientModule, module, "algorithm.client")
    if trainer.dtype != torch.float32:
        module.to(trainer.dtype)
    if trainer.compile:
        module.model.compile()
    return module


def become(module: ClientModule, task: Task, receive: Callable[[Any, Any], None]) -> Any:
    """Make a client half the client of a task and give the method's record of its last turn.

    The half's ``receive`` or ``recall`` takes what the server sends and what the client has kept.
    """
    kept = task.kept or _NOTHING
    module.take_personal(kept.personal)
    receive(task.payload, kept.memory)
    return kept.memory


def turn_of(module: ClientModule, task: Task, memory: Any, data: FederatedData, seed: int = 0) -> Turn:
    """Give what a client half may know of a task.

    Args:
        module: The client half.
        task: The task.
        memory: The method's record of the client's last turn.
        data: The federation's data.
        seed: The experiment's seed.
    """
    return Turn(
        client_id=task.client_id,
        round_idx=task.round_idx,
        payload=task.payload,
        memory=memory,
        num_steps=module.local_steps(task.num_steps),
        lr=module.base_lr * task.lr_factor,
        device=data.device,
        class_counts=data.class_counts[task.client_id],
        batches=partial(data.labelled_batches, task.client_id),
        final=task.final,
        run_seed=seed,
    )


def uploaded(module: ClientModule, turn: Turn, tensors: Tensors) -> tuple[Any, Any]:
    """Give what a client half sends and what its client keeps, for the trained tensors.

    Raises:
        TypeError: It is none of that.
    """
    found = module.upload(turn, tensors)
    kind = module.payload_type
    pair = isinstance(found, tuple | list) and len(found) == 2 and not isinstance(found, kind)
    if not (pair and all(hasattr(found[0], name) for name in _fields(kind))):
        inner = ", ".join(type(one).__name__ for one in found) if pair else ""
        got = f"({inner})" if inner else f"a {type(found).__name__}"
        raise TypeError(
            f"{type(module).__name__}.upload must give ({kind.__name__}, memory), but it gives {got}"
        )
    payload, memory = found
    for what, given in (("a payload", payload), ("a memory", memory)):
        try:
            tree.flatten(given)
        except TypeError as error:
            rule = f"{type(module).__name__}.upload must give {what} of tensors, numbers and texts"
            raise TypeError(f"{rule}, but {str(error)[:1].lower()}{str(error)[1:].rstrip('.')}") from error
    return payload, memory


def _fields(record: type) -> tuple[str, ...]:
    return tuple(getattr(record, "_fields", ()) or getattr(record, "__dataclass_fields__", ()))


@contextmanager
def evaluating(module: ClientModule, device: torch.device, trainer: LocalTrainer) -> Iterator[None]:
    """Have a module on the device in eval mode, in the precision of the fits."""
    module.to(device).eval()
    try:
        with trainer.autocast(device):
            yield
    finally:
        module.train()


def adapts(module: ClientModule) -> bool:
    """Whether a client's own model takes its data to make, so that no two clients have the same."""
    return type(module).adapt is not ClientModule.adapt


def adapt(
    module: ClientModule, client_id: int, data: Callable[[], FederatedData], trainer: LocalTrainer, seed: int
) -> None:
    """Have a client half make the client's own model by its data; they are not asked for where it takes none.

    What it draws is drawn anew for every client, but not for every round: a model is the same whenever it is asked for.
    """
    if adapts(module):
        found = data()
        turn = turn_of(module, Task(client_id, 0, None, None), None, found, seed)
        # After a `recall` the softmax is still that of the client before.
        module.scope_to(turn)
        with evaluating(module, found.device, trainer):
            module.adapt(turn)


def left_out(module: ClientModule) -> frozenset[str]:
    """Name the tensors of a client half that no upload may be made of: they follow from others, or are frozen."""
    dropped = {f"model.{key}" for key, policy in module.policies.items() if policy == DROPPED}
    return frozenset(dropped.union(still_keys(module)))


class TrainedTensors(Mapping[str, "Params"]):
    """The tensors of a client half after its fit by its parts, each copied to the CPU when it is asked for.

    Those that `left_out` names are not among them.
    """

    def __init__(self, module: ClientModule) -> None:
        self._module, self._copies, self._left_out = module, dict[str, Any](), left_out(module)

    def __getitem__(self, part: str) -> Params:
        """Copy the tensors of a part: ``model``, or any other module that the half has."""
        if part not in self._copies:
            own = self._module.get_submodule(part)
            chosen = [key for key in own.state_dict() if f"{part}.{key}" not in self._left_out]
            self._copies[part] = snapshot(own, chosen)
        return self._copies[part]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._module.named_children())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def cause_of(error: Exception) -> str:
    """Give an error's type, the first line of what it says, and where it comes from in a method of one's own."""
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text.rstrip('.')}{own_place(error)}"


def seed_global_generators(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's; `torch.manual_seed` formats a stack trace without a GPU (0.5 ms)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
