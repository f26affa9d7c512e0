import re
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.nn import functional

from fedfeat.config.arguments import check_targets
from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn, fedrep_cnn10, fedrep_cnn100, fusion_cifar_cnn, mnist_cnn, valid_cnn
from fedfeat.models.hetero import hetero_cnn
from fedfeat.models.mlp import mlp
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.network import Network
from fedfeat.models.resnet import resnet_cifar
from fedfeat.models.vgg import vgg9, vgg11, vgg16_cifar

CIFAR = (3, 32, 32)
MNIST = (1, 28, 28)
DIGITS = (1, 8, 8)
CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "model").glob("*.yaml"))
CONFIGS = [path for path in CONFIGS if path.stem != "sent140_lstm"]  # reads no images


def on_meta(builder, shape, num_classes):
    with torch.device("meta"):
        return builder(shape, num_classes)


def num_params(network):
    return sum(p.numel() for p in network.parameters())


# Counts as published or, where the source only rounds them, summed layer by layer:
# vgg16 convolutions 14,714,688 with bias, head 512x2 530,442, affine batch norm 2 x 4,224.
@pytest.mark.parametrize(
    ("builder", "shape", "num_classes", "count", "width"),
    [
        (vgg9, CIFAR, 10, 3_491_530, 512),
        (partial(vgg16_cifar, norm="none"), CIFAR, 10, 15_245_130, 512),
        (vgg16_cifar, CIFAR, 10, 15_245_130 + 2 * 4_224, 512),
        (partial(vgg16_cifar, norm="gn"), CIFAR, 10, 15_245_130 + 2 * 4_224, 512),
        (partial(vgg16_cifar, norm="none", head="4096x2"), CIFAR, 10, 33_638_218, 4096),
        (partial(vgg16_cifar, norm="none", head="single"), CIFAR, 10, 14_714_688 + 5_130, 512),
        (mobilenet_v1_cifar, CIFAR, 10, 3_217_226, 1024),
        # He et al. 2016, table 6, rounds to .27, .46, .85 and 1.7 million; its shortcuts have no filters.
        (resnet_cifar, CIFAR, 10, 269_722 + 2_752, 64),
        (partial(resnet_cifar, depth=32), CIFAR, 10, 464_154 + 2_752, 64),
        (partial(resnet_cifar, depth=56), CIFAR, 10, 853_018 + 2_752, 64),
        (partial(resnet_cifar, depth=110), CIFAR, 10, 1_727_962 + 2_752, 64),
        (partial(resnet_cifar, depth=8, norm="gn"), CIFAR, 10, 75_290 + 2_752, 64),
        (mnist_cnn, MNIST, 10, 1_663_370, 512),
        # The second kernel is 3x3 instead of 5x5: 64 x 32 x 16 weights fewer.
        (partial(mnist_cnn, arch="code"), MNIST, 10, 1_663_370 - 32_768, 512),
        (fusion_cifar_cnn, CIFAR, 10, 1_756_426, 192),
        (fedrep_cnn10, CIFAR, 10, 307_842, 64),
        (fedrep_cnn100, CIFAR, 100, 1_075_044, 128),
        (partial(hetero_cnn, arch="A1"), CIFAR, 10, 130_314, 12_544),
        (partial(hetero_cnn, arch="A2"), CIFAR, 10, 3_218_954, 256),
        (partial(hetero_cnn, arch="A3"), CIFAR, 10, 300_658, 120),
        (partial(hetero_cnn, arch="A4"), CIFAR, 10, 307_842, 64),
        (partial(hetero_cnn, arch="A5"), CIFAR, 10, 327_938, 64),
        (partial(hetero_cnn, arch="A1"), CIFAR, 100, 4_864 + 12_544 * 100 + 100, 12_544),
        (partial(hetero_cnn, arch="A2"), CIFAR, 100, 4_864 + 12_545 * 256 + 257 * 100, 256),
        (partial(hetero_cnn, arch="A3"), CIFAR, 100, 4_864 + 1_601 * 128 + 3_201 * 256 + 257 * 100, 256),
        (partial(hetero_cnn, arch="A4"), CIFAR, 100, 1_075_044, 128),
        # conv3 is 3x3 on 128 channels and leaves 3x3 places: 1,152 features.
        (
            partial(hetero_cnn, arch="A5"),
            CIFAR,
            100,
            4_864 + 1_601 * 128 + 1_153 * 128 + 1_153 * 256 + 257 * 128 + 129 * 100,
            128,
        ),
        # As Flower's baseline of FedNova prints it.
        (vgg11, CIFAR, 10, 9_750_922, 512),
        (valid_cnn, CIFAR, 10, 456 + 2_416 + 401 * 120 + 121 * 84 + 85 * 10, 84),
        (
            partial(valid_cnn, hidden=[120, 100]),
            CIFAR,
            10,
            456 + 2_416 + 401 * 120 + 121 * 100 + 101 * 10,
            100,
        ),
        (partial(valid_cnn, widths=[64, 64], hidden=[384, 192]), CIFAR, 10, 797_962, 192),
        (
            partial(valid_cnn, widths=[32, 64], hidden=[512]),
            CIFAR,
            100,
            2_432 + 51_264 + 1_601 * 512 + 513 * 100,
            512,
        ),
        (
            partial(valid_cnn, widths=[32, 64], hidden=[512]),
            MNIST,
            10,
            832 + 51_264 + 1_025 * 512 + 513 * 10,
            512,
        ),
        (partial(mlp, hidden=[200, 200]), MNIST, 10, 199_210, 200),
        (mlp, DIGITS, 10, 65 * 64 + 65 * 10, 64),
        (digits_cnn, DIGITS, 10, 10 * 16 + 145 * 32 + 129 * 32 + 33 * 10, 32),
    ],
)
def test_parameter_count_and_representation_width(builder, shape, num_classes, count, width):
    network = on_meta(builder, shape, num_classes)
    assert num_params(network) == count
    assert network.last_layer.in_features == width
    assert network.last_layer.out_features == network.num_classes == num_classes
    assert network.input_shape == shape


def test_vgg16_counts_round_to_the_published_ones():
    assert round(num_params(on_meta(partial(vgg16_cifar, norm="none"), CIFAR, 10)) / 1e6, 2) == 15.25
    big = on_meta(partial(vgg16_cifar, norm="none", head="4096x2"), CIFAR, 10)
    assert round(num_params(big) / 1e6, 1) == 33.6


@pytest.mark.parametrize(
    ("builder", "shape", "features"),
    [
        (vgg9, DIGITS, (256, 1, 1)),
        (vgg9, MNIST, (256, 3, 3)),
        (vgg16_cifar, (3, 64, 32), (512, 2, 1)),
        (mobilenet_v1_cifar, CIFAR, (1024, 2, 2)),
        (partial(mobilenet_v1_cifar, norm="gn", width_multiplier=0.25), MNIST, (256, 2, 2)),
        (partial(resnet_cifar, depth=8), DIGITS, (64, 2, 2)),
        (partial(resnet_cifar, depth=14, width=8, norm="gn"), (3, 24, 31), (32, 6, 8)),
        (mnist_cnn, MNIST, (64, 7, 7)),
        (partial(mnist_cnn, arch="code"), MNIST, (64, 7, 7)),
        (fusion_cifar_cnn, CIFAR, (64, 8, 8)),
        (fedrep_cnn10, MNIST, (64, 4, 4)),
        (partial(hetero_cnn, arch="A5"), (3, 24, 24), (128, 1, 1)),
        (digits_cnn, DIGITS, (32, 2, 2)),
        (digits_cnn, (3, 9, 5), (32, 2, 1)),
    ],
)
def test_shapes_follow_the_input(builder, shape, features):
    network = builder(shape, 7).eval()
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    assert network.features(x).shape == (2, *features)
    assert network(x).shape == (2, 7)
    assert network(x).isfinite().all()


def test_block_names_are_those_of_the_papers():
    names = [name for name, _ in on_meta(vgg9, CIFAR, 10).blocks()]
    assert names == ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3"]
    names = [name for name, _ in on_meta(vgg16_cifar, CIFAR, 10).blocks()]
    stages = (2, 2, 3, 3, 3)
    assert names[:-3] == [f"conv{s}_{i}" for s, n in enumerate(stages, 1) for i in range(1, n + 1)]
    names = [name for name, _ in on_meta(mobilenet_v1_cifar, CIFAR, 10).blocks()]
    assert names == ["stem", *[f"block{i}" for i in range(1, 14)], "fc"]
    names = [name for name, _ in on_meta(partial(resnet_cifar, depth=14), CIFAR, 10).blocks()]
    assert names == ["stem", *[f"stage{s}_{i}" for s in (1, 2, 3) for i in (1, 2)], "fc"]


def test_resnet_cifar_computes_what_the_paper_says():
    """He et al. 2016: y = relu(F(x) + x), where a stage begins relu(F(x) + Wx); stride 2 in both of its ways."""
    torch.manual_seed(0)
    network = resnet_cifar(DIGITS, 3, depth=8, width=4).double().eval()
    state = network.state_dict()
    x = torch.randn(2, *DIGITS, dtype=torch.float64)

    def layer(x, name, number, stride=1):
        weight = state[f"{name}.conv{number}.weight"]
        norm = {"": "norm", "1": "bn1", "2": "bn2"}[number]
        own = [state[f"{name}.{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        assert all(part.shape == weight.shape[:1] for part in own)
        return functional.batch_norm(
            functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2), *own
        )

    y = layer(x, "encoder.stem", "").relu()
    for stage, stride in ((1, 1), (2, 2), (3, 2)):
        name = f"encoder.stage{stage}_1.residual"
        shortcut = y if stage == 1 else layer(y, f"{name}.downsample", "", stride)
        y = (layer(layer(y, name, "1", stride).relu(), name, "2") + shortcut).relu()
    logits = y.mean(dim=(2, 3)) @ state["head.fc.linear.weight"].T + state["head.fc.linear.bias"]
    torch.testing.assert_close(network(x), logits)
    # He et al. 2015, equation 10: variance 2 over the inputs of a filter.
    weights = resnet_cifar(CIFAR, 10).get_submodule("encoder.stage3_2.residual.conv1").weight
    assert weights.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.03)


def test_vgg11_is_that_of_the_source():
    """Configuration A: what the pools follow, dropout in front of two layers, and He's initial weights."""
    network = vgg11(CIFAR, 10)
    names = [name for name, _ in network.blocks()]
    assert names == [f"conv{s}_{i}" for s, n in enumerate((1, 1, 2, 2, 2), 1) for i in range(1, n + 1)] + [
        "fc1", "fc2", "fc3"
    ]  # fmt: skip
    pools = [n.split(".")[1] for n, m in network.named_modules() if isinstance(m, nn.MaxPool2d)]
    assert pools == ["conv1_1", "conv2_1", "conv3_2", "conv4_2", "conv5_2"]
    dropped = {n: m.p for n, m in network.named_modules() if isinstance(m, nn.Dropout)}
    assert dropped == {"head.fc1.input_dropout": 0.5, "head.fc1.dropout": 0.5}
    weight = network.get_parameter("encoder.conv5_2.conv.weight")
    assert weight.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.02)
    assert network.get_parameter("encoder.conv5_2.conv.bias").abs().max() == 0
    assert on_meta(partial(vgg11, norm="bn"), CIFAR, 10).get_submodule("encoder.conv1_1.norm") is not None


@pytest.mark.parametrize(
    ("name", "num_classes", "count"),
    [("simple_cnn", 10, 62_006), ("lg_cnn", 10, 64_102), ("feddyn_cnn", 10, 797_962), ("vgg11", 10, 9_750_922),
     ("pfllib_cnn", 100, 924_708), ("pfl_cnn", 10, 1_626_442)],
)  # fmt: skip
def test_files_of_networks_say_their_size(name, num_classes, count):
    path = next(path for path in CONFIGS if path.stem == name)
    assert num_params(on_meta(instantiate(OmegaConf.load(path)), CIFAR, num_classes)) == count
    assert f"{count:,} parameters" in path.read_text()


def test_pfl_cnn_has_the_dropout_of_the_source():
    network = on_meta(
        instantiate(OmegaConf.load(next(path for path in CONFIGS if path.stem == "pfl_cnn"))), CIFAR, 10
    )
    assert network.encoder(torch.zeros(2, *CIFAR, device="meta")).shape == (2, 64, 14, 14)
    dropped = {n: m.p for n, m in network.named_modules() if isinstance(m, nn.Dropout)}
    assert dropped == {"head.fc1.input_dropout": 0.25, "head.fc1.dropout": 0.5}


def test_heterofl_cnn_has_the_size_that_is_published():
    """Of images of one channel."""
    path = next(path for path in CONFIGS if path.stem == "heterofl_cnn")
    network = on_meta(instantiate(OmegaConf.load(path)), (1, 28, 28), 10)
    assert num_params(network) == 1_556_874
    assert "1,556,874 parameters" in path.read_text()
    assert network.get_submodule("encoder.conv4.norm").num_features == 512


def test_state_dict_keys_of_fedrep_cnn10():
    layers = (
        "encoder.conv1.conv",
        "encoder.conv2.conv",
        "head.fc1.linear",
        "head.fc2.linear",
        "head.fc3.linear",
    )
    expected = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert list(on_meta(fedrep_cnn10, CIFAR, 10).state_dict()) == expected


def test_vgg9_layers_are_those_of_the_source():
    network = on_meta(vgg9, CIFAR, 10)
    dropped = {n: m.p for n, m in network.named_modules() if isinstance(m, nn.Dropout | nn.Dropout2d)}
    pools = [n for n, m in network.named_modules() if isinstance(m, nn.MaxPool2d)]
    assert dropped == {
        "encoder.conv4.dropout": 0.05,
        "head.fc1.input_dropout": 0.1,
        "head.fc2.dropout": 0.1,
    }
    assert pools == ["encoder.conv2.pool", "encoder.conv4.pool", "encoder.conv6.pool"]
    assert not any(isinstance(m, nn.BatchNorm2d | nn.GroupNorm) for m in network.modules())


def test_dropout_stands_in_front_of_the_last_layer():
    dropped = [
        {n: m.p for n, m in on_meta(partial(hetero_cnn, arch=arch), CIFAR, 100).named_modules()
         if isinstance(m, nn.Dropout)}
        for arch in ("A1", "A2", "A4")
    ]  # fmt: skip
    assert dropped == [{"head.fc1.input_dropout": 0.6}, {"head.fc1.dropout": 0.6}, {"head.fc2.dropout": 0.6}]
    small = on_meta(hetero_cnn, CIFAR, 10)
    assert not any(isinstance(m, nn.Dropout) for m in small.modules())


def test_mobilenet_bias_only_without_norm_and_depthwise_groups():
    with_norm, without = on_meta(mobilenet_v1_cifar, CIFAR, 10), on_meta(
        partial(mobilenet_v1_cifar, norm="none"), CIFAR, 10
    )  # fmt: skip
    convs = [m for m in with_norm.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 27
    assert all(m.bias is None for m in convs)
    assert all(m.bias is not None for m in without.modules() if isinstance(m, nn.Conv2d))
    assert [m.groups for m in convs[:5]] == [1, 32, 1, 64, 1]


@pytest.mark.parametrize("builder", [mnist_cnn, fusion_cifar_cnn])
def test_xavier_init_bounds_weights_and_zeroes_biases(builder):
    network = builder((3, 16, 16), 10)
    for name, param in network.named_parameters():
        if name.endswith("bias"):
            assert param.abs().max() == 0
        else:
            area = param[0, 0].numel() if param.ndim == 4 else 1
            bound = (6 / (area * (param.shape[0] + param.shape[1]))) ** 0.5
            assert 0.9 * bound < param.abs().max() <= bound
    default = builder((3, 16, 16), 10, init="default")
    assert default.get_parameter("encoder.conv1.conv.bias").abs().max() > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: vgg9((1, 4, 4), 10),
            r"^model vgg9 needs inputs of at least 8x8 pixels, but .* \(1, 4, 4\)\.$",
        ),
        (lambda: vgg16_cifar(MNIST, 10), r"at least 32x32 pixels, but the data set gives \(1, 28, 28\)"),
        (lambda: fedrep_cnn10(DIGITS, 10), "fedrep_cnn10 needs inputs of at least 16x16"),
        (lambda: hetero_cnn(DIGITS, 10, arch="A5"), "hetero_cnn A5 needs inputs of at least 24x24"),
        (lambda: digits_cnn((1, 3, 9), 10), r"digits_cnn needs inputs of at least 4x4 pixels, .*\(1, 3, 9\)"),
        (lambda: vgg9((64,), 10), r"vgg9 needs images of shape \(C, H, W\), but the data set gives \(64,\)"),
        (
            lambda: vgg9(CIFAR, 10, norm="gn", norm_groups=7),
            "model.norm_groups must divide the 32 channels of a layer, but it is 7",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(build, message):
    with torch.device("meta"), pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("builder", "key", "value", "rule"),
    [
        ("vgg.vgg9", "norm", "ln", "be one of none, bn, gn"),
        ("vgg.vgg9", "norm_groups", 0, "be a positive whole number"),
        ("vgg.vgg9", "dropout", 1.0, "be at least 0 and below 1"),
        ("vgg.vgg9", "conv_dropout", -0.1, "be at least 0 and below 1"),
        ("vgg.vgg16_cifar", "head", "256", "be one of 512x2, 4096x2, single"),
        ("cnn.mnist_cnn", "arch", "paper", "be one of text, code"),
        ("cnn.mnist_cnn", "init", "he", "be one of xavier, default"),
        ("hetero.hetero_cnn", "arch", "A6", "be one of A1, A2, A3, A4, A5"),
        ("hetero.hetero_cnn", "variant", "x", "be one of auto, cifar10, cifar100"),
        ("mobilenet.mobilenet_v1_cifar", "width_multiplier", 0, "be in (0, inf)"),
        ("resnet.resnet_cifar", "depth", 18, "be 6n + 2 for a whole n: 8, 14, 20, 32, 44, 56, 110 and so on"),
        ("resnet.resnet_cifar", "norm", "none", "be one of bn, gn"),
        ("mlp.mlp", "hidden", [64, 0], "be a list in which each must be a positive whole number"),
        ("mlp.mlp", "hidden", 64, "be a list in which each must be a positive whole number"),
        ("cnn.digits_cnn", "width", 0, "be a positive whole number"),
    ],
)
def test_bad_options_are_refused_by_the_types_of_the_builders(builder, key, value, rule):
    sentence = f"model.{key} must {rule}, but it is {value!r}."
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        check_targets({"model": {"_target_": f"fedfeat.models.{builder}", key: value}})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds_with_its_own_options(path):
    assert path.read_text().startswith("# ")
    network = on_meta(instantiate(OmegaConf.load(path)), CIFAR, 10)
    assert isinstance(network, Network)
    assert network.last_layer.out_features == 10


def test_configs_cover_every_network():
    names = {path.stem for path in CONFIGS}
    assert names >= {
        "mlp", "digits_cnn", "mnist_cnn", "vgg9", "vgg16_cifar", "mobilenet_v1_cifar", "fusion_cifar_cnn",
        "fedrep_cnn10", "fedrep_cnn100", "hetero_cnn", "resnet18_gn", "resnet_cifar", "torchvision",
    }  # fmt: skip
