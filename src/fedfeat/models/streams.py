"""Which values of a network are streams of the same channels, found by how the network computes.

A convolution or a linear layer begins a stream. What treats every channel alike (norm, activation, pool, depthwise
convolution) goes on with it. A sum or a product joins streams: all layers that write to one, as those of a residual
network do from block to block, have one width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from fedfeat.models.flow import Flow, Kind, Part, Step
from fedfeat.models.network import Network

WEIGHTED = (nn.Conv2d, nn.Linear)
REPLACED_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
_ALIKE_LAYERS = (
    *(
        nn.ReLU,
        nn.ReLU6,
        nn.LeakyReLU,
        nn.PReLU,
        nn.RReLU,
        nn.ELU,
        nn.CELU,
        nn.SELU,
        nn.GELU,
        nn.SiLU,
        nn.Mish,
    ),
    *(
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.Hardtanh,
        nn.Sigmoid,
        nn.LogSigmoid,
        nn.Tanh,
        nn.Tanhshrink,
        nn.Softplus,
    ),
    *(nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.LPPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.Upsample),
    *(nn.Identity, nn.modules.dropout._DropoutNd),
)
"""Layers that treat every channel, or every feature, alike."""
_JOINING = {"add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv"}
_ACTIVATIONS = {
    "relu",
    "relu_",
    "relu6",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "hardswish",
    "hardsigmoid",
    "sigmoid",
}
_POOLS = {"avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"}
_ALIKE = {*_ACTIVATIONS, *_POOLS, "tanh", "softplus", "clamp", "contiguous", "interpolate"}
"""Functions and methods by name: what joins values, and what treats every channel alike."""


def flow_of(network: Network) -> Flow:
    """Follow a network's values from the input to the logits; nothing is computed.

    Args:
        network: Any network of ordered blocks.
    """
    flow = Flow()
    value = flow.add(Step("opaque", (), None, None, "the input"), network.input_shape[0])
    for block_name, block in network.blocks():
        for name, layer in block.named_children():
            source, first, graph = value, len(flow.steps), _graph(layer)
            if graph is None:
                value = _add(flow, layer, (source,), None, f"{name} in {block_name}")
            else:
                value = _follow(flow, layer, graph, source, block_name)
            flow.parts.append(Part(layer, source, range(first, len(flow.steps)), graph))
    return flow


def is_composite(layer: nn.Module) -> bool:
    """Whether convolutions or linear layers are inside of a layer."""
    return not isinstance(layer, WEIGHTED) and any(isinstance(module, WEIGHTED) for module in layer.modules())


def is_depthwise(layer: nn.Module | None) -> bool:
    """Whether a layer is a convolution with one filter per channel."""
    return isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels == layer.out_channels


def with_layers(
    layer: nn.Module,
    graph: fx.Graph,
    prefix: str,
    between: Sequence[tuple[fx.Node | None, fx.Node | None, nn.Module]],
) -> nn.Module:
    """Let single operations of a composite layer read through further layers.

    Args:
        layer: The composite layer, whose insides may have been exchanged.
        graph: How it computes; left as it is.
        prefix: Begin of the further layers' names.
        between: Which value (None is the input), read by which operation, passes through which layer.
    """
    new, nodes = fx.Graph(), dict[fx.Node, fx.Node]()
    new.output(new.graph_copy(graph, nodes))
    source = next(node for node in new.nodes if node.op == "placeholder")
    for i, (value, reader, module) in enumerate(between):
        assert reader is not None
        read, at = source if value is None else nodes[value], nodes[reader]
        layer.add_module(f"{prefix}{i}", module)
        with new.inserting_before(at):
            at.replace_input_with(read, new.call_module(f"{prefix}{i}", (read,)))
    return fx.GraphModule(layer, new)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not is_composite(m)


def _graph(layer: nn.Module) -> fx.Graph | None:
    """Give how a composite layer computes its one output of its one input; None of others."""
    return _traced(layer) if is_composite(layer) else None


def _traced(layer: nn.Module) -> fx.Graph | None:
    try:
        graph = _Tracer().trace(layer)
    except Exception:  # whatever a forward function does with what is no tensor
        return None
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output").args[0]
    return graph if len(inputs) == 1 and isinstance(output, fx.Node) else None


def _follow(flow: Flow, layer: nn.Module, graph: fx.Graph, source: int, block: str) -> int:
    values: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = source
        elif node.op == "output":
            return values[node.args[0]]
        else:
            inputs = tuple(values[before] for before in node.all_input_nodes)
            module = layer.get_submodule(str(node.target)) if node.op == "call_module" else None
            values[node] = _add(flow, module, inputs, node, f"{_target(node)} in {block}")
    raise AssertionError("A graph ends with its output.")


def _add(flow: Flow, module: nn.Module | None, inputs: Sequence[int], node: fx.Node | None, name: str) -> int:
    kind = _kind_of_node(node) if module is None and node is not None else _kind_of_module(module)
    if kind in ("weighted", "depthwise") and any(step.module is module for step in flow.steps):
        kind = "opaque"  # called again
    width = getattr(module, "out_channels", getattr(module, "out_features", None))
    return flow.add(Step(kind, tuple(inputs), module, node, name), width if kind == "weighted" else None)


def _kind_of_module(module: nn.Module | None) -> Kind:
    if isinstance(module, WEIGHTED):
        return "depthwise" if is_depthwise(module) else "weighted"
    if isinstance(module, REPLACED_NORMS):
        return "norm"
    assert module is not None
    return "alike" if _is_alike(module) else "opaque"


def _is_alike(module: nn.Module) -> bool:
    """Whether a layer treats every channel alike: a known one, or one that computes with nothing else."""
    if any(parameter.numel() > 1 for parameter in module.parameters()):
        return False
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    if isinstance(module, _ALIKE_LAYERS):
        return True
    from torchvision.ops import StochasticDepth  # slow to import, so not for the usual layers

    if isinstance(module, StochasticDepth):
        return True
    # What PyTorch has beside those is not traced, but its containers are.
    is_known = type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.Sequential)
    graph = None if is_known or is_composite(module) else _traced(module)
    return graph is not None and all(_node_is_alike(module, node) for node in graph.nodes)


def _node_is_alike(layer: nn.Module, node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "call_module":
        return _is_alike(layer.get_submodule(str(node.target)))
    return _kind_of_node(node) in ("alike", "joined")


def _kind_of_node(node: fx.Node) -> Kind:
    name, inputs = _target(node), len(node.all_input_nodes)
    if node.op == "get_attr" or inputs == 0:
        return "opaque"
    if name in _JOINING:
        return "joined" if inputs > 1 else "alike"
    return "alike" if inputs == 1 and (name in _ALIKE or _keeps_channels(name, node)) else "opaque"


def _keeps_channels(name: str, node: fx.Node) -> bool:
    """Whether a function with an argument that says where leaves examples and channels in their places."""
    argument = {"flatten": "start_dim", "mean": "dim", "unsqueeze": "dim", "getitem": ""}.get(name)
    if argument is None:
        return False
    where: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get(argument)
    places = list(where) if isinstance(where, Sequence) else [where]
    if name == "flatten":
        end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
        return (places, end) == ([1], -1)
    if name == "getitem":  # x[:, :, None, None]
        return places[:2] == [slice(None)] * 2 and set(places[2:]) == {None}
    if name == "mean":  # -1 alone is the channels of a vector
        return set(places) <= {2, 3} or set(places) == {-1, -2}
    return set(places) <= {2, 3, -1}


def _target(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
