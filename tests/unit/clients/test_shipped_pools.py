"""The pools of configs/pool: torchvision's parameters, one width of the features, networks in turn."""

import warnings
from collections import Counter

import pytest
import torch
import torchvision.models as zoo
from hydra.utils import instantiate
from omegaconf import OmegaConf
from safetensors.torch import save_file

from fedfeat.clients.architecture_pool import ArchitecturePool, PooledNetworks
from fedfeat.config.arguments import check_targets
from fedfeat.config.choices import CONFIGS
from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn, valid_cnn
from fedfeat.models.freezing import still_keys
from fedfeat.models.mlp import mlp

HTFE8 = ("cnn", "googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
POOLS = {
    "htfe2": ("cnn", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": HTFE8[:4],
    "htfe8": HTFE8,
    "small4": ("cnn", "cnn_bn", "mlp", "resnet"),
}
PUBLISHED = {
    # 3 x 32 x 25 + 32, 32 x 64 x 25 + 64, 64 x 25 x 512 + 512: the 4-layer CNN without its last layer.
    "cnn": 2432 + 51264 + 819712,
    "resnet18": 11_176_512,
}
"""Parameters without the last layer, where they were counted by hand."""


def pool_of(name, **changes):
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / "pool" / f"{name}.yaml")) | changes
    check_targets({"pool": config})
    return instantiate(config, _convert_="all")


def networks(name, shape=(3, 32, 32), num_classes=10, num_clients=20, **changes):
    base = lambda: valid_cnn(shape, num_classes) if shape[1] > 16 else mlp(shape, num_classes)  # noqa: E731
    pool = pool_of(name, **changes)
    return PooledNetworks(pool, base, lambda make: make(), shape, num_classes, num_clients, 0)


def count(module):
    return sum(p.numel() for p in module.parameters())


def torchvisions(name, num_classes):
    """Count the parameters of torchvision's network, less those of its last layer."""
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):
        model = zoo.get_model(name, weights=None, num_classes=num_classes, **options)
    last = model.classifier[-1] if name == "mobilenet_v2" else model.fc
    return count(model) - count(last)


@pytest.mark.parametrize("pool", POOLS)
def test_client_i_runs_network_i_modulo_their_number(pool):
    found = pool_of(pool).assign(20, seed=3)
    assert found == tuple(POOLS[pool][k % len(POOLS[pool])] for k in range(20))
    assert pool_of(pool, cyclic=False).assign(20, seed=3) != found
    assert pool_of(pool).assign(4, seed=0, weak=(1,)) == found[:4]  # without a weak network, as ever


@pytest.mark.parametrize("name", HTFE8)
@pytest.mark.parametrize("num_classes", [10, 100])
def test_networks_of_htfe8_are_torchvisions_with_512_features(name, num_classes):
    with torch.device("meta"), warnings.catch_warnings():
        # Of torch's truncated normal distribution, which draws nothing here.
        warnings.simplefilter("ignore")
        network = networks("htfe8", num_classes=num_classes).build(name)
        x = torch.empty(2, 3, 32, 32)
        assert network.representation(x).shape == (2, 512)
        assert network(x).shape == (2, num_classes)
    body = PUBLISHED["cnn"] if name == "cnn" else torchvisions(name, num_classes)
    assert count(network) == body + 512 * num_classes + num_classes
    assert network.last_layer_name == "head.last.linear"
    assert body == PUBLISHED.get(name, body)


def test_resnet10_has_one_block_in_each_stage():
    """Of 3x3 convolutions with their norms, and a 1x1 one with its norm where widths change."""
    stem = 3 * 64 * 49 + 2 * 64
    stages = sum(
        9 * n_in * n + 9 * n * n + 4 * n + (n_in * n + 2 * n if n != n_in else 0)
        for n_in, n in ((64, 64), (64, 128), (128, 256), (256, 512))
    )
    with torch.device("meta"):
        network = networks("htfe3").build("resnet10")
    assert count(network) == stem + stages + 512 * 10 + 10


def test_networks_for_small_images_have_one_width_and_are_small():
    made = networks("small4", (1, 8, 8))
    for name in POOLS["small4"]:
        network = made.build(name)
        x = torch.rand(4, 1, 8, 8)
        assert network.representation(x).shape == (4, 32)
        assert network(x).shape == (4, 10)
        assert count(network) < 100_000
    assert Counter(made.names) == dict.fromkeys(POOLS["small4"], 5)
    assert made.build().last_layer.in_features == 32


def test_images_that_are_too_small_are_refused_with_the_least_size():
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match="googlenet needs inputs of at least 15x15 pixels"),
    ):
        networks("htfe4", (1, 8, 8)).build("googlenet")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"cyclic": True, "shares": {"a": 1.0}},
            r"pool\.cyclic must be false beside pool\.shares or pool\.names",
        ),
        ({"cyclic": True, "names": ["a"]}, r"pool\.cyclic must be false beside pool\.shares or pool\.names"),
        (
            {"weights": {"bb": "f"}},
            r"pool\.weights must name networks of the pool \(a, b\), but it is 'bb'; did you mean b\?",
        ),
        ({"freeze": {"c": ["body"]}}, r"pool\.freeze must name networks of the pool \(a, b\), but it is 'c'"),
        ({"fresh": {"c": ["last"]}}, r"pool\.fresh must name networks of the pool \(a, b\), but it is 'c'"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ArchitecturePool({"a": mlp, "b": mlp}, **changes)


def test_each_network_is_frozen_by_its_own_names(tmp_path):
    made = networks("small4", (1, 8, 8), freeze={"cnn": ["encoder.conv1"], "mlp": ["body"]})
    assert still_keys(made.build("cnn")) == ["encoder.conv1.conv.weight", "encoder.conv1.conv.bias"]
    assert still_keys(made.build("mlp")) == ["encoder.fc1.linear.weight", "encoder.fc1.linear.bias"]
    assert still_keys(made.build("cnn_bn")) == still_keys(made.build()) == []
    with pytest.raises(
        ConfigError, match=r"^pool\.freeze\.cnn must name parts of the network .* 'encoder\.conv7'; did you"
    ):
        networks("small4", (1, 8, 8), freeze={"cnn": ["encoder.conv7"]}).build("cnn")


def test_weights_of_a_network_are_its_own_before_it_gets_the_common_head(tmp_path):
    """Through the configuration: names and shapes are those of the network alone."""
    from fedfeat.commands.starts import started

    torch.manual_seed(3)
    other = digits_cnn((1, 8, 8), 10)
    save_file(other.state_dict(), tmp_path / "cnn.safetensors")
    build = started(digits_cnn, "pool.{}.cnn", str(tmp_path / "cnn.safetensors"), ())
    pool = ArchitecturePool({"cnn": build}, head_width=16)
    made = PooledNetworks(pool, lambda: mlp((1, 8, 8), 10), lambda make: make(), (1, 8, 8), 10, 2, 0).build(
        "cnn"
    )
    assert torch.equal(made.get_submodule("encoder.conv1.conv").weight, other.encoder.conv1.conv.weight)
    assert made.last_layer.in_features == 16
    with pytest.raises(ConfigError, match=r"^pool\.weights\.cnn must hold .* \(pool\.fresh\.cnn names parts"):
        started(digits_cnn, "pool.{}.cnn", str(tmp_path / "cnn.safetensors"), ())(
            input_shape=(3, 8, 8), num_classes=10
        )
    with pytest.raises(ConfigError, match=r"^pool\.fresh\.cnn must be empty without pool\.weights\.cnn"):
        started(digits_cnn, "pool.{}.cnn", None, ["last"])
