"""Activations of all weighted layers in one forward pass, found by how the network runs, not by names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.models.fusion import fusion_of
from fedfeat.models.network import NORMS, Network

ACTIVATIONS = (
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh),  # ReLU6 is a Hardtanh
    *(nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish),
    *(nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign),
)


class Point(NamedTuple):
    """A place in a forward pass: the output of one call of one module.

    Attributes:
        module: Path of the module.
        call: Which of its calls, from 0; torchvision's residual blocks call one ReLU twice.
        neurons: Channels or units of that output, its second dimension.
    """

    module: str
    call: int
    neurons: int


class LayerPoints(NamedTuple):
    """Where the activations of one weighted layer are.

    Attributes:
        pre_act: The output of the layer, or of the norm behind it.
        post_act: The output of the activation behind that; ``pre_act`` where none follows.
    """

    pre_act: Point
    post_act: Point


class _Tip(NamedTuple):
    """The furthest output that still holds the neurons of one layer and nothing else."""

    layer: str
    output: Tensor
    version: int


def is_weighted(module: nn.Module) -> bool:
    """Tell whether a module has neurons with weights of their own: a convolution, a linear map or alike.

    Several of them side by side, a module with nothing but a list of them, are one layer.
    """
    if isinstance(module, nn.Conv2d | nn.Linear):
        return True
    if isinstance(module, (*NORMS, nn.Embedding)):
        return False
    weight = module._parameters.get("weight")
    if weight is not None:
        return weight.ndim >= 2
    parts = _side_by_side(module)
    return bool(parts) and all(map(is_weighted, parts))


def _is_norm(module: nn.Module) -> bool:
    parts = _side_by_side(module)
    return isinstance(module, NORMS) or (bool(parts) and all(isinstance(part, NORMS) for part in parts))


def _side_by_side(module: nn.Module) -> list[nn.Module]:
    """Give the members of the list that is a module's only child."""
    children = list(module.children())
    return list(children[0]) if len(children) == 1 and isinstance(children[0], nn.ModuleList) else []


def _units(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give the modules that the trace looks at, and into none of them: layers, norms and all without children."""
    inside: set[nn.Module] = set()
    # The frozen extractor of FedFusion is another model, whose neurons belong to nobody here.
    fusion = fusion_of(network)
    if fusion is not None:
        inside.update(fusion.frozen.modules())
    for name, module in network.named_modules():
        is_unit = is_weighted(module) or _is_norm(module) or not any(True for _ in module.children())
        if module not in inside and is_unit:
            inside.update(module.modules())
            yield name, module


def layer_points(network: Network) -> dict[str, LayerPoints]:
    """Find the points of every weighted layer, in the order in which the layers run.

    One example runs through the network in eval mode. From a layer's output on, the modules that read exactly
    the output before them are followed. An addition, as at the end of a residual block, ends this, so the
    activation behind it belongs to no layer. Activations called as functions, not modules, are not seen.

    Args:
        network: The network; left as it was.
    """
    trace = _Trace()
    like = next(network.parameters())
    # Not inference mode, whose tensors do not count their changes.
    with ExitStack() as hooks, eval_mode(network), torch.inference_mode(False), torch.no_grad():
        for name, module in _units(network):
            hooks.enter_context(module.register_forward_pre_hook(trace.before))
            hooks.enter_context(module.register_forward_hook(partial(trace.after, name)))
        network(torch.zeros((1, *network.input_shape), device=like.device, dtype=like.dtype))
    return trace.points


class _Trace:
    """Forward hooks that follow each layer's output through the norm and activation behind it."""

    def __init__(self) -> None:
        self.points: dict[str, LayerPoints] = {}
        self.calls: Counter[str] = Counter()
        self.tips: dict[int, _Tip] = {}
        self.input_tip: _Tip | None = None

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note whose output the module reads, before it may change it in place."""
        x = args[0] if args else None
        tip = self.tips.get(id(x))
        # The tip holds its tensor, so no other has its id; a changed version is an addition in place.
        self.input_tip = tip if tip and tip.output._version == tip.version else None

    def after(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Start a layer at a weighted module, or continue the one whose output the module has read."""
        call = self.calls[name]
        self.calls[name] += 1
        if not isinstance(output, Tensor) or output.ndim < 2:
            return
        point = Point(name, call, output.shape[1])
        if is_weighted(module):
            if name not in self.points:
                self.points[name] = LayerPoints(point, point)
                self._set_tip(name, output)
        elif self.input_tip is not None:
            self._follow(self.input_tip, module, point, output)
        self.input_tip = None

    def _follow(self, tip: _Tip, module: nn.Module, point: Point, output: Tensor) -> None:
        pre_act, post_act = self.points[tip.layer]
        if post_act != pre_act or point.neurons != pre_act.neurons:
            return
        if isinstance(module, ACTIVATIONS):
            self.points[tip.layer] = LayerPoints(pre_act, point)
            return
        if _is_norm(module):
            self.points[tip.layer] = LayerPoints(point, point)
        self._set_tip(tip.layer, output)

    def _set_tip(self, layer: str, output: Tensor) -> None:
        self.tips[id(output)] = _Tip(layer, output, output._version)


@contextmanager
def captured(network: Network, points: Mapping[str, Point]) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs at the points during one forward pass, fit for ``torch.autograd.grad``.

    Args:
        network: The network that is run inside the context, once.
        points: Name (of a layer) to point.

    Yields:
        Name to activation (B, neurons, ...), filled by the forward pass.
    """
    wanted = {(point.module, point.call): layer for layer, point in points.items()}
    calls: Counter[str] = Counter()
    taken: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        layer = wanted.get((name, calls[name]))
        calls[name] += 1
        if layer is None:
            return None
        if not output.requires_grad:
            output = output.detach().requires_grad_()  # everything before it is frozen
        taken[layer] = output
        return output.clone()  # what follows may change it in place: ReLU, or a residual addition

    with ExitStack() as hooks:
        for name in {point.module for point in points.values()}:
            hooks.enter_context(network.get_submodule(name).register_forward_hook(partial(keep, name)))
        yield taken


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode, and every module of it back into its own mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
