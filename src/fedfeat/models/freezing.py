"""Parts of a network that do not train: neither their weights nor their statistics move, and nothing is dropped."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from fedfeat.errors import ConfigError
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.network import Network
from fedfeat.models.selectors import modules_of, unknown_selector

_BATCH_NORM = nn.modules.batchnorm._NormBase


def freeze(network: Network, selectors: Sequence[str], key: str) -> None:
    """Freeze parts of a network, in place.

    Args:
        network: The network.
        selectors: ``body`` (all in front of the last layer), ``last``, ``norm`` (normalisation layers by type), or
            dotted names of blocks or modules (``encoder``, ``encoder.conv1``, ``head.fc1.linear``).
        key: Where they stand in the configuration.

    Raises:
        ConfigError: A selector names nothing, or nothing is left that trains.
    """
    if not selectors:
        return
    chosen = [
        part for selector in selectors for top in _named(network, selector, key) for part in top.modules()
    ]
    network.frozen = tuple(dict.fromkeys(chosen))
    for part in network.frozen:
        part.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError.rule(key, "leave something that trains", list(selectors))
    network.train()


def still_keys(module: nn.Module) -> list[str]:
    """Name the tensors of a module's state_dict that belong to frozen parts of networks."""
    frozen = _frozen(module)
    if not frozen:
        return []
    names = {name for name, part in module.named_modules() if part in frozen}
    return [key for key in module.state_dict() if key.rpartition(".")[0] in names]


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model has batch norm that is not frozen, which cannot train on a batch of one example."""
    return any(isinstance(part, _BATCH_NORM) for part in _moving(model))


@contextmanager
def statistics_at_rest(model: nn.Module) -> Iterator[None]:
    """Have a model in training work with its batch norms' running statistics, and leave them alone."""
    norms = [part for part in model.modules() if isinstance(part, _BATCH_NORM) and part.training]
    for norm in norms:
        norm.training = False
    try:
        yield
    finally:
        for norm in norms:
            norm.training = True


def moving_statistics(model: nn.Module) -> list[str]:
    """Name the running statistics of a model's batch norms that are not frozen, with their counters."""
    return buffers_of(model, {part for part in _moving(model) if isinstance(part, _BATCH_NORM)})


def buffers_of(model: nn.Module, parts: Collection[nn.Module]) -> list[str]:
    """Name the buffers that parts of a model have themselves."""
    return [
        f"{path}.{name}"
        for path, part in model.named_modules()
        if part in parts
        for name, _ in part.named_buffers(recurse=False)
    ]


def mixes_examples(module: nn.Module) -> bool:
    """Whether the examples of a batch meet in a layer: batch norm, or a layer whose ``mixes_examples`` is true.

    What is frozen takes every example by itself where it is batch norm.
    """
    return has_batch_norm(module) or any(getattr(part, "mixes_examples", False) for part in module.modules())


def _moving(model: nn.Module) -> Iterator[nn.Module]:
    """Go through the modules that are not frozen, nor in a copy that never trains."""
    copies = [part for part in model.modules() if isinstance(part, FrozenCopy)]
    frozen = _frozen(model) | {part for copy in copies for part in copy.modules()}
    return (part for part in model.modules() if part not in frozen)


def _frozen(module: nn.Module) -> set[nn.Module]:
    return {part for network in module.modules() if isinstance(network, Network) for part in network.frozen}


def _named(network: Network, selector: str, key: str) -> list[nn.Module]:
    if selector == "body":
        last = list(network.head)[-1]
        return [*network.encoder, *list(network.head)[:-1], *list(last.children())[:-1]]
    found = list(modules_of(network, selector).values())
    if not found:
        raise unknown_selector(network, selector, key, ("body", "norm", "last"))
    return found
