"""Networks of torchvision by name, cut into named blocks with encoder and head."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from torch import nn

from fedfeat.config.conditions import Condition
from fedfeat.errors import ConfigError
from fedfeat.models.blocks import NORM_GROUPS, Size, image_channels, make_norm, named_layers
from fedfeat.models.draws import Draw, LinearLayer, draw_layers, he_fan_out, zero_bias
from fedfeat.models.grouped_conv import like_conv
from fedfeat.models.grouped_layers import ClassLinear
from fedfeat.models.network import Block, Network
from fedfeat.models.shapes import feature_shape

RESNETS = ("resnet", "resnext", "wide_resnet")
FEATURE_NETS = ("alexnet", "vgg", "mobilenet", "efficientnet")
FAMILIES = (*RESNETS, *FEATURE_NETS, "googlenet")
SHORT = {"resnet10": (1, 1, 1, 1)}
"""Basic blocks in each stage of torchvision's ResNet, where it has no function of that name."""


def _is_known(arch: Any) -> bool:
    import torchvision.models as zoo  # slow to import, and needed by this adapter alone

    return isinstance(arch, str) and arch.startswith(FAMILIES) and arch in (*SHORT, *zoo.list_models(zoo))


ARCH = Condition(
    _is_known,
    f"be resnet10, or a torchvision model of {', '.join(FAMILIES)}",
    {"type": "string", "pattern": f"^({'|'.join(FAMILIES)})"},
)


def torchvision_model(
    input_shape: Sequence[int],
    num_classes: int,
    arch: Annotated[str, ARCH] = "resnet18",
    norm: Literal["bn", "gn"] = "bn",
    norm_groups: Size = NORM_GROUPS,
    small_input: bool = False,
) -> Network:
    """Build a torchvision classifier without pre-trained weights, as a list of named blocks.

    Args:
        input_shape: (C, H, W).
        num_classes: Number of classes.
        arch: A name of ``torchvision.models``: a ResNet, ResNeXt, VGG, MobileNet, EfficientNet, AlexNet or GoogLeNet
            (without its auxiliary classifiers); or ``resnet10``, a ResNet with one basic block in each stage.
        norm: ``bn`` as published, or ``gn``: every batch norm replaced by group norm.
        norm_groups: Groups of ``gn``.
        small_input: For ResNets on small images: first convolution 3x3 with stride 1, no max pool.
    """
    if not ARCH.holds(arch):
        raise ConfigError.rule("model.arch", ARCH.text, arch)
    channels = image_channels(arch, input_shape)
    is_resnet = arch.startswith(RESNETS)
    if small_input and not is_resnet:
        raise ConfigError.rule(
            "model.small_input", f"be false for {arch}, as only ResNets have the option", True
        )
    model, draw = _made(arch, num_classes), _draw_of(arch)
    if small_input:
        _use_small_stem(model)
    if channels != 3:
        _set_input_channels(model, channels, draw)
    if norm == "gn":
        _batch_to_group_norm(model, arch, norm_groups)
    published = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    cut = _resnet_blocks if is_resnet else _googlenet_blocks if arch == "googlenet" else _feature_net_blocks
    encoder, head = cut(model)
    feature_shape(arch, encoder, input_shape)
    network = Network(encoder, head, input_shape, num_classes)
    network.draw = draw
    own = network.state_dict(keep_vars=True).items()
    network.published = {published[id(tensor)]: name for name, tensor in own}
    return network


def _made(arch: str, num_classes: int) -> nn.Module:
    import torchvision.models as zoo

    if arch in SHORT:
        return zoo.ResNet(zoo.resnet.BasicBlock, list(SHORT[arch]), num_classes=num_classes)
    # Without its second option it says at every call that its initial weights may be others one day.
    options = {"aux_logits": False, "init_weights": True} if arch == "googlenet" else {}
    return zoo.get_model(arch, weights=None, num_classes=num_classes, **options)


def _resnet_blocks(model: nn.Module) -> tuple[list[Block], list[Block]]:
    parts = dict(model.named_children())
    stem = [("conv", parts["conv1"]), ("norm", parts["bn1"]), ("relu", parts["relu"])]
    if not isinstance(parts["maxpool"], nn.Identity):
        stem.append(("pool", parts["maxpool"]))
    encoder: list[Block] = [("stem", named_layers(stem))]
    for i in range(1, 5):
        stage = parts[f"layer{i}"]
        encoder += [
            (f"layer{i}_{j}", named_layers([("residual", b)])) for j, b in enumerate(stage.children(), 1)
        ]
    head = named_layers([("pool", parts["avgpool"]), ("flatten", nn.Flatten()), ("linear", parts["fc"])])
    return encoder, [("fc", head)]


def _googlenet_blocks(model: nn.Module) -> tuple[list[Block], list[Block]]:
    """Make a block of each convolution and inception module, with the pool that follows it."""
    layers: dict[str, list[tuple[str, nn.Module]]] = {}
    parts = dict(model.named_children())
    end = [("pool", parts.pop("avgpool")), ("flatten", nn.Flatten())]
    end += [("dropout", parts.pop("dropout")), ("linear", parts.pop("fc"))]
    for name, part in parts.items():
        if isinstance(part, nn.MaxPool2d):
            layers[next(reversed(layers))].append(("pool", part))
        else:
            layers[name] = [("conv" if name.startswith("conv") else "inception", part)]
    return [(name, named_layers(own)) for name, own in layers.items()], [("fc", named_layers(end))]


def _feature_net_blocks(model: nn.Module) -> tuple[list[Block], list[Block]]:
    """Cut networks of the form features, average pool, flatten, classifier."""
    parts = dict(model.named_children())
    # MobileNetV2 pools in its forward function instead of a layer.
    pool = parts.get("avgpool", nn.AdaptiveAvgPool2d(1))
    features = _split(parts["features"].children())
    classifier = _split(parts["classifier"].children(), before=[pool, nn.Flatten()])
    return _named("conv", features), _named("fc", classifier)


def _split(layers: Iterable[nn.Module], before: Sequence[nn.Module] = ()) -> list[list[nn.Module]]:
    """Cut a flat list of layers so that each piece holds one layer with weights and what follows it."""
    pieces: list[list[nn.Module]] = [[*before]]
    has_weights = False
    for layer in layers:
        starts = isinstance(layer, nn.Conv2d | nn.Linear) or any(True for _ in layer.children())
        if starts and has_weights:
            pieces.append([])
        has_weights = has_weights or starts
        pieces[-1].append(layer)
    return pieces


def _named(prefix: str, pieces: Sequence[Sequence[nn.Module]]) -> list[Block]:
    def name(layer: nn.Module, i: int) -> str:
        return {nn.Conv2d: "conv", nn.Linear: "linear"}.get(type(layer), f"{type(layer).__name__.lower()}{i}")

    return [
        (f"{prefix}{k}", named_layers([(name(layer, i), layer) for i, layer in enumerate(piece)]))
        for k, piece in enumerate(pieces, start=1)
    ]


def _use_small_stem(model: nn.Module) -> None:
    stem = model.get_submodule("conv1")
    assert isinstance(stem, nn.Conv2d)
    conv = nn.Conv2d(stem.in_channels, stem.out_channels, 3, stride=1, padding=1, bias=False)
    he_fan_out(conv)
    model.conv1 = conv
    model.maxpool = nn.Identity()


def _set_input_channels(model: nn.Module, channels: int, draw: Draw | None) -> None:
    name, old = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    conv = like_conv(old, channels, old.out_channels)
    draw_layers(conv, draw)
    model.set_submodule(name, conv)


def _draw_of(arch: str) -> Draw | None:
    """Give how torchvision draws the layers of a network; AlexNet's are the framework's."""
    rules: dict[str, Draw] = {
        "googlenet": _truncated,
        "efficientnet": partial(_he_but_linear, _by_outputs),
        "vgg": partial(_he_but_linear, _narrow),
        "mobilenet": partial(_he_but_linear, _narrow),
    }
    if arch.startswith(RESNETS):
        return he_fan_out
    return next((draw for family, draw in rules.items() if arch.startswith(family)), None)


def _he_but_linear(draw: Callable[[LinearLayer], None], layer: nn.Module) -> None:
    he_fan_out(layer)
    if isinstance(layer, LinearLayer):
        draw(layer)
        zero_bias(layer)


def _narrow(layer: LinearLayer) -> None:
    nn.init.normal_(layer.weight, 0.0, 0.01)


def _by_outputs(layer: LinearLayer) -> None:
    bound = (layer.num_classes if isinstance(layer, ClassLinear) else layer.out_features) ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound)


def _truncated(layer: nn.Module) -> None:
    """Draw weights near 0 and leave biases to the framework."""
    if isinstance(layer, nn.Conv2d | LinearLayer):
        nn.init.trunc_normal_(layer.weight, 0.0, 0.01, -2.0, 2.0)


def _batch_to_group_norm(model: nn.Module, arch: str, groups: int) -> None:
    old = {name: m.num_features for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    if not old:
        raise ConfigError.rule("model.norm", f"be bn for {arch}, which has no batch norm to replace", "gn")
    for name, channels in old.items():
        layer = make_norm("gn", channels, groups)
        assert layer is not None
        model.set_submodule(name, layer)
