"""Files of weights: every tensor by name and shape, or a sentence that says which differ."""

import logging
import re

import pytest
import torch
import torchvision.models as zoo
from safetensors.torch import save_file

from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.weights import StoredWeights, take_weights


def cnn(seed, num_classes=10, **options):
    torch.manual_seed(seed)
    return digits_cnn((1, 8, 8), num_classes, width=4, norm="bn", **options)


def stored(tmp_path, tensors):
    path = tmp_path / "weights.safetensors"
    save_file({key: tensor.detach().clone() for key, tensor in tensors.items()}, path)
    return StoredWeights.read("model.weights", str(path))


def loaded(tmp_path, tensors, into=None, fresh=()):
    into = cnn(1) if into is None else into
    before = {key: tensor.clone() for key, tensor in into.state_dict().items()}
    take_weights(into, stored(tmp_path, tensors), fresh)
    return before, into.state_dict()


def same(one, other):
    return {key for key in one if key in other and torch.equal(one[key], other[key])}


def test_every_tensor_is_taken_statistics_too(tmp_path):
    other = cnn(0).train()
    other(torch.randn(6, 1, 8, 8))
    before, found = loaded(tmp_path, other.state_dict())
    assert same(found, other.state_dict()) == set(found)
    assert "encoder.conv1.norm.running_mean" not in same(before, found)


def test_half_precision_becomes_that_of_the_network(tmp_path):
    other = {
        key: tensor.half() if tensor.is_floating_point() else tensor
        for key, tensor in cnn(0).state_dict().items()
    }
    _, found = loaded(tmp_path, other)
    assert found["head.fc1.linear.weight"].dtype == torch.float32
    assert torch.equal(found["head.fc1.linear.weight"], other["head.fc1.linear.weight"].float())


LAST = {"head.fc2.linear.weight", "head.fc2.linear.bias"}


def test_a_last_layer_of_other_classes_keeps_its_initial_weights_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="fedfeat"):
        before, found = loaded(tmp_path, cnn(0, num_classes=7).state_dict())
    assert {key for key in found if key in LAST and torch.equal(before[key], found[key])} == LAST
    assert same(found, cnn(0).state_dict()) >= set(found) - LAST
    assert "is of 7 classes: the last layer keeps its initial weights, of 10." in caplog.text
    _, found = loaded(tmp_path, cnn(0).state_dict())
    assert same(found, cnn(0).state_dict()) == set(found)


def test_parts_that_are_to_be_fresh_are(tmp_path):
    tensors = cnn(0).state_dict()
    before, found = loaded(tmp_path, tensors, fresh=["encoder.conv1", "last"])
    for key in found:
        kept = key.startswith("encoder.conv1.") or key in LAST
        assert torch.equal(found[key], (before if kept else tensors)[key]), key
    # Whatever the file has for them, and if it has nothing.
    less = {key: tensor for key, tensor in tensors.items() if key not in LAST}
    _, found = loaded(tmp_path, less, fresh=["last"])
    assert same(found, tensors) == set(less)
    with pytest.raises(
        ConfigError, match=r"model\.fresh must name parts of the network .* but it is 'conv7'"
    ):
        loaded(tmp_path, tensors, fresh=["conv7"])


def without(tensors, *keys):
    return {key: tensor for key, tensor in tensors.items() if key not in keys}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: without(t, "encoder.conv2.conv.bias"), "lacks encoder.conv2.conv.bias ("),
        (lambda t: {**t, "aux.weight": torch.ones(2)}, "has besides aux.weight ("),
        (
            lambda t: {**t, "head.fc1.linear.weight": torch.ones(32, 9)},
            "has head.fc1.linear.weight 32x9 instead of 32x32 (",
        ),
        (
            lambda t: {**t, "head.fc1.linear.weight": t["head.fc1.linear.weight"].to(torch.int8)},
            "has head.fc1.linear.weight int8 instead of float32 (",
        ),
        # Not only the number of classes is another one.
        (
            lambda t: {
                **t,
                "head.fc2.linear.weight": torch.ones(7, 9),
                "head.fc2.linear.bias": torch.ones(7),
            },
            "has head.fc2.linear.weight 7x9 instead of 10x32, head.fc2.linear.bias 7 instead of 10 (",
        ),
        (
            lambda t: {f"module.{key}": tensor for key, tensor in t.items()},
            "lacks encoder.conv1.conv.weight, encoder.conv1.conv.bias, encoder.conv1.norm.weight and 15 more; has "
            "besides module.encoder.conv1.conv.bias, ",
        ),
        (lambda t: without(t, *LAST), "lacks head.fc2.linear.weight, head.fc2.linear.bias ("),
    ],
)
def test_what_differs_is_said_and_nothing_is_changed(change, what, tmp_path):
    into = cnn(1)
    before = {key: tensor.clone() for key, tensor in into.state_dict().items()}
    rule = "model.weights must hold the tensors of the network by name and shape, but "
    with pytest.raises(ConfigError, match=f"^{re.escape(rule)}.*weights.safetensors {re.escape(what)}"):
        loaded(tmp_path, change(cnn(0).state_dict()), into)
    assert same(before, into.state_dict()) == set(before)


@pytest.mark.parametrize("arch", ["resnet18", "mobilenet_v2", "googlenet"])
def test_weights_in_torchvisions_names_give_what_torchvision_computes(arch, tmp_path):
    options = {"aux_logits": False, "init_weights": True} if arch == "googlenet" else {}
    original = zoo.get_model(arch, weights=None, num_classes=10, **options).eval()
    network = torchvision_model((3, 32, 32), 10, arch=arch)
    loaded(tmp_path, original.state_dict(), network)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(network.eval()(x), original(x))


def test_torchvisions_weights_of_a_thousand_classes_lack_the_last_layer_alone(tmp_path):
    original = zoo.get_model("resnet18", weights=None)
    network = torchvision_model((3, 32, 32), 10, arch="resnet18")
    before, found = loaded(tmp_path, original.state_dict(), network)
    assert same(before, found) >= {"head.fc.linear.weight", "head.fc.linear.bias"}
    assert torch.equal(found["encoder.layer4_2.residual.conv2.weight"], original.layer4[1].conv2.weight)


def test_a_stem_for_small_images_has_to_be_fresh(tmp_path):
    """FedProto's network for CIFAR-10 has its own first convolution, norm and last layer."""
    original = zoo.get_model("resnet18", weights=None, num_classes=10)
    network = torchvision_model((3, 32, 32), 10, arch="resnet18", small_input=True)
    with pytest.raises(
        ConfigError, match=r"has encoder\.stem\.conv\.weight 64x3x7x7 instead of 64x3x3x3 \(model\.fresh "
    ):
        loaded(tmp_path, original.state_dict(), network)
    before, found = loaded(tmp_path, original.state_dict(), network, fresh=["encoder.stem", "last"])
    assert torch.equal(found["encoder.stem.conv.weight"], before["encoder.stem.conv.weight"])
    assert torch.equal(found["encoder.layer1_1.residual.conv1.weight"], original.layer1[0].conv1.weight)


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "weights.pt"
    with pytest.raises(
        ConfigError, match=r"model\.weights must name a file of safetensors that can be read \(No such"
    ):
        StoredWeights.read("model.weights", str(path))
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(
        ConfigError, match=r"model\.weights must name a file of safetensors that can be read \(.*eader"
    ):
        StoredWeights.read("model.weights", str(path))


def test_a_fresh_norm_may_be_of_another_kind_than_the_files(tmp_path):
    network = digits_cnn((1, 8, 8), 10, width=4, norm="gn")
    before, found = loaded(tmp_path, cnn(0).state_dict(), network, fresh=["norm"])
    kept = same(before, found)
    assert kept == {key for key in before if ".norm." in key}
    assert len(kept) >= 2
    with pytest.raises(ConfigError, match="running_mean"):
        loaded(tmp_path, cnn(0).state_dict(), digits_cnn((1, 8, 8), 10, width=4, norm="gn"))
