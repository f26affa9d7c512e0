"""Whether the clients of an experiment can be stacked into one fit; asked at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import cause_of, turn_of
from fedfeat.clients.worker import Worker
from fedfeat.data.batches import PADDED, too_few
from fedfeat.errors import ConfigError
from fedfeat.executors.stacked.dropout import DropoutMasks, dropout_calls
from fedfeat.executors.stacked.fit import trainable
from fedfeat.executors.stacked.stacking import ELEMENTWISE, Objective, gradients, repeated
from fedfeat.executors.stacked.turns import has_phases
from fedfeat.params import copy_into, snapshot

if TYPE_CHECKING:
    from fedfeat.types import Params

# What a method may override without a word about stacking: they read the module and change nothing.
_PURE = (
    *("loss", "forward", "predict", "cross_entropy", "recall", "adapt"),
    *("observe", "laid_out", "upload", "answer", "check", "phases", "begin_phase", "note", "clip"),
    *("own_tensors", "answer_flops"),
)

# Largest gap between gradients of a stacked and a single step, relative to the largest gradient: sums in another order.
# Mixed ones are compared in full precision: behind a norm, bfloat16 alone moves a gradient of few examples by a tenth.
_TOLERANCE = {"64-true": 1e-10, "32-true": 1e-3, "bf16-mixed": 1e-3}
_SAME = 100
"""Units of rounding by which sums of the same numbers may differ, for a GPU adds some of them in any order."""
_EXAMPLES = 8
"""Of a batch that are compared."""


class Probe(NamedTuple):
    """A client half's objective, and what a forward pass keeps for the backward pass, per example."""

    objective: Objective
    saved_bytes: float


def check_stackable(worker: Worker, executor: str, probed: Callable[[ClientModule], Probe]) -> None:
    """Refuse an experiment whose clients cannot be stacked; ``probed`` gives what `probe` finds of a client half.

    Raises:
        ConfigError: The first thing that does not allow it.
    """
    rule = f"executor must be another than {executor} here"
    reason = _refusal(worker)
    if reason is not None:
        raise ConfigError(f"{rule}, for {reason}.")
    for module in worker.kinds():
        try:
            with torch.random.fork_rng(_gpus(worker.data.device)), _uncompiled(worker):
                reason = _other_step(worker, probed(module).objective)
        except ConfigError:  # that nobody can train, here or elsewhere
            raise
        except Exception as error:  # whatever the layers of a network and `vmap` may say
            reason = f"a step of two clients together fails ({cause_of(error)})"
            raise ConfigError(f"{rule}, for {reason}.") from error
        if reason is not None:
            raise ConfigError(f"{rule}, for {reason}.")


def _gpus(device: torch.device) -> list[int]:
    """Name the GPU that draws; all of them would be initialised otherwise."""
    return [device.index or 0] if device.type == "cuda" else []


def _refusal(worker: Worker) -> str | None:
    trainer, module = worker.trainer, worker.module
    optimizer = type(module.configure_optimizers())
    reasons = {
        f"{type(module).__name__} cannot be stacked: {apart(module)}": apart(module),
        f"{optimizer.__name__} (optimizer) does not step every number by itself": optimizer not in ELEMENTWISE,
        "stacked fits with phases, of heads and bodies, begin their optimizers anew (federation.opt_state=keep)":
            worker.settings.keep_optimizer and has_phases(module),
        "a fit runs on one device (trainer.devices)": worker.lightning.world_size > 1,
        f"trainer.precision={trainer.precision} is none of 64-true, 32-true and bf16-mixed":
            str(worker.lightning.precision) not in _TOLERANCE,
        "callbacks are made for fits of one client": bool(trainer.callbacks),
        f"trainer.{next(iter(trainer.further), '')} has no stacked form": bool(trainer.further),
    }  # fmt: skip
    return next((text for text, holds in reasons.items() if holds), None)


def apart(module: ClientModule) -> str | None:
    """Give the reason why a client half cannot be stacked, or None."""
    if module.apart:
        return module.apart
    kinds = type(module).__mro__
    for kind in kinds[: kinds.index(ClientModule)]:
        own = {} if "apart" in vars(kind) else vars(kind)
        for name, value in own.items():
            pure = name in _PURE or name.startswith("__") or not hasattr(ClientModule, name)
            if isinstance(value, FunctionType) and not pure:
                return f"{kind.__name__} overrides {name} and does not say that it can (ClientModule.apart)"
    return None


def probe(worker: Worker, module: ClientModule) -> Probe:
    """Run the local objective of a client half once and see what it takes."""
    inputs, labels = _examples(worker, module)
    saved: dict[int, int] = {}
    weights = {tensor.untyped_storage().data_ptr() for tensor in module.state_dict().values()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def run() -> None:
        with worker.trainer.autocast(worker.data.device), saved_tensors_hooks(note, lambda tensor: tensor):
            kept.append(module.loss((inputs, labels)))

    kept: list[Tensor] = []  # alive, so that no storage is counted under the address of another
    module.to(worker.data.device).train()
    before = snapshot(module)  # batch norms note what they see
    with _uncompiled(worker):
        calls = dropout_calls(module, run)
    own = trainable(module)
    found = torch.autograd.grad(kept[0], list(own.values()), allow_unused=True)
    copy_into(module, before)
    unused = [name for name, gradient in zip(own, found, strict=True) if gradient is None]
    return Probe(Objective(module, calls, unused), sum(saved.values()) / len(labels))


def _uncompiled(worker: Worker) -> AbstractContextManager[None]:
    """Context for a step or two, for which nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if worker.trainer.compile else nullcontext()


def _other_step(worker: Worker, objective: Objective) -> str | None:
    """Say in what a padded step of two clients is another than that of one; None where it is the same.

    Half of the stack is padding, whose contents must not count at all: of a term of small weight that mixes a batch's
    examples, such as a correlation, the gap to the step of one alone could pass for rounding.
    """
    module: ClientModule = objective.client
    inputs, labels = (part[:_EXAMPLES] for part in _examples(worker, module))
    own: Params = {name: p for name, p in trainable(module).items() if name not in objective.unused}
    before, precision = snapshot(module), str(worker.lightning.precision)
    torch.manual_seed(0)
    alone = torch.autograd.grad(module.loss((inputs, labels)), list(own.values()))
    copy_into(module, before)
    # In full precision, in which a term of small weight is seen.
    found = [_padded_step(objective, own, inputs, labels, x) for x in (torch.zeros_like(inputs), inputs)]
    if precision.endswith("mixed"):
        with worker.trainer.autocast(worker.data.device):
            _padded_step(objective, own, inputs, labels, inputs)  # that it can be computed
    if not (gap := _gap(*found)) <= _SAME * torch.finfo(found[0][0].dtype).eps:
        return (
            f"{type(module).__name__}.loss depends on the rows of a batch that are padding, with labels of {PADDED} "
            f"(gradients change by {gap:.2g} of the largest; ClientModule.loss)"
        )
    if not (gap := _gap(found[0], alone)) <= _TOLERANCE[precision]:
        return (
            "in a step of two clients together gradients are others than in a step of one "
            f"(by {gap:.2g} of the largest)"
        )
    return None


def _padded_step(
    objective: Objective, own: Params, inputs: Tensor, labels: Tensor, padding: Tensor
) -> list[Tensor]:
    """Give the gradients (2, *) of a step of two clients, each on examples (B, ...) and as many rows of padding."""
    count = len(labels)
    masks = DropoutMasks(objective.calls, [0, 0], inputs.device).draw([count] * 2, 2 * count)
    batch = torch.cat([inputs, padding]), torch.cat([labels, torch.full_like(labels, PADDED)])
    x, y = (part.expand(2, *part.shape) for part in batch)
    with objective.stacked_forms():
        return [*gradients(objective, repeated(own, 2), {}, x, y, masks)[0].values()]


def _gap(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Give the largest distance of gradients (2, *) from others, (2, *) or (*), relative to the largest of these."""
    gaps = [float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True)]
    largest = max(float(other.abs().max()) for other in theirs)
    return max(gaps) / max(largest, torch.finfo(torch.float32).tiny)


def _examples(worker: Worker, module: ClientModule) -> tuple[Tensor, Tensor]:
    """Give inputs (B, ...) and labels (B,) of a client's batch.

    Raises:
        ConfigError: There is none.
    """
    counts = [worker.data.num_examples(k) for k in range(worker.data.num_clients)]
    client_id = next((k for k, count in enumerate(counts) if count > 1), counts.index(max(counts)))
    module.ready(turn_of(module, Task(client_id, 0, None, None), None, worker.data))
    address = client_id, worker.settings.seed, 0, worker.settings.batch_size
    for batch in worker.data.train_batches(*address, drop_singleton=worker.drop_singleton):
        return batch
    raise too_few(2, len(counts), max(counts))
