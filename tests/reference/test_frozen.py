"""Every method with a part of its network frozen, and on cached features: the same rounds to rounding."""

import pytest
import torch
from float64_runs import assert_same, run, steps_of
from safetensors.torch import save_file

from fedfeat import tree
from fedfeat.errors import ConfigError, UserError
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.freezing import still_keys

BN = ("model.norm=bn", "federation.num_rounds=2", "federation.evaluate_local=true")
ENCODER = (*BN, "model.freeze=[encoder]")
CACHED = {
    "fedavg": (),
    "scaffold": ("federation.cohort_size=3",),
    "fedbabu": (),
    "ditto": ("federation.cohort_size=3",),
    "fedrod": (),
    "fedproto": (),
    "fedgh": (),
    "fedhenn": ("algorithm.server.rad_size=12",),
    "fedhenn_hetero": ("algorithm.server.rad_size=12",),
    "feddf": ("algorithm.server.source=train_pool", "algorithm.server.steps=20"),
}
FROZEN = {
    "fedadam": (),
    "fedprox": (),
    "feddyn": (),
    "lg_fedavg": (),
    "fedrep": ("federation.local_epochs=2", "algorithm.client.head_epochs=1"),
    "apfl": ("algorithm.client.alpha=0.3",),  # of .3 v + .7 v some are not v to the last bit
    "pfedme": (),
    "per_fedavg": (),
    "fedala": ("algorithm.client.ala_batch=4",),
    "ditto": ("federation.cohort_size=3",),
    "moon": ("federation.num_rounds=3",),
    "fedfusion_conv": (),
    "fedtgp": (),
    "feddf": ("algorithm.server.source=train_pool", "algorithm.server.steps=20"),
}
"""Methods with more tensors than those of the network, or that switch some of them off."""


@pytest.mark.parametrize("method", CACHED)
def test_cached_features_give_the_rounds_of_the_frozen_encoder(method, tmp_path):
    """Statistics of its batch norm do not move, so features are the same in training; sums are in another order."""
    words = (f"algorithm={method}", *ENCODER, *CACHED[method])
    frozen = run(tmp_path / "a", *words)
    cached = run(tmp_path / "b", *words, "model.cached=true")
    assert_same(cached, frozen)
    for mine, its in zip(cached[1], frozen[1], strict=True):
        assert mine.metrics.get("comm/up_bytes") == its.metrics.get("comm/up_bytes")
        assert mine.metrics.get("compute/examples") == its.metrics.get("compute/examples")


def test_preferences_are_taken_on_cached_features_as_behind_the_frozen_encoder(tmp_path):
    words = ("algorithm=fedavg", *ENCODER, "diagnostics=alignment", "diagnostics.images_per_class=4")
    frozen, cached = (
        run(tmp_path / name, *words, f"model.cached={name}")[1][-1].metrics for name in ("false", "true")
    )
    # Of all layers together more are compared where the encoder is there.
    names = [name for name in cached if name.startswith(("align/agreement_", "align/distance_"))]
    assert names
    for name in names:
        assert cached[name] == pytest.approx(frozen[name], abs=1e-9)


@pytest.mark.parametrize("method", FROZEN)
def test_frozen_tensors_are_those_of_the_start_in_every_method(method, tmp_path):
    words = (f"algorithm={method}", *BN, *FROZEN[method], "model.freeze=[encoder.conv1]")
    experiment, _ = steps_of(tmp_path, *words)
    worker = experiment.executor.worker
    own, start = worker.module.model.state_dict(), worker.networks.build().state_dict()
    still = [key for key in still_keys(worker.module.model) if key in start]
    assert len(still) == 7
    assert all(torch.equal(own[key], start[key]) for key in still)
    moved = [
        key for key in start if key not in still and key in own and not torch.equal(own[key], start[key])
    ]
    assert "encoder.conv2.conv.weight" in moved or not any(key.startswith("encoder") for key in moved)
    # Whatever the clients keep, a record of the encoder's first block is not in it.
    for k in experiment.store:
        _, named = tree.flatten(experiment.store.get(k))
        assert not [name for name in named if "conv1" in name]


def test_where_convolutions_alone_are_cached_the_weights_are_the_same_bit_for_bit(tmp_path):
    words = ("algorithm=fedavg", *ENCODER, "trainer.precision=32-true")
    frozen, _ = run(tmp_path / "a", *words)
    cached, _ = run(tmp_path / "b", *words, "model.cached=true")
    assert all(torch.equal(mine, its) for mine, its in zip(cached, frozen, strict=True))


def test_a_part_of_the_encoder_can_be_cached_where_features_are_fused(tmp_path):
    words = ("algorithm=fedfusion_conv", *BN, "model.freeze=[encoder.conv1]")
    assert_same(run(tmp_path / "a", *words, "model.cached=true"), run(tmp_path / "b", *words))
    with pytest.raises(
        ConfigError, match=r"model\.freeze must leave a part of the encoder whose features are fused"
    ):
        run(tmp_path / "c", "algorithm=fedfusion_conv", *ENCODER)


def test_what_is_frozen_does_not_cross_the_wire(tmp_path):
    """Of 8 bytes each: the last layer's 320 weights and 10 biases, by 4 clients."""
    _, steps = steps_of(tmp_path, "algorithm=fedavg", *BN, "model.freeze=[body]")
    assert steps[-1][1].metrics["comm/up_bytes"] == 2 * 4 * 330 * 8
    assert set(steps[-1][0].state.params) == {"head.fc2.linear.weight", "head.fc2.linear.bias"}


@pytest.mark.parametrize("cached", ["false", "true"])
def test_forked_processes_give_the_same_weights_and_stacked_clients_agree(cached, tmp_path):
    """Frozen batch norm takes each example by itself, so padding does no harm."""
    words = ("algorithm=moon", *ENCODER, f"model.cached={cached}")
    serial = run(tmp_path / "a", *words)
    forked = run(tmp_path / "b", *words, "executor=processes")
    assert all(torch.equal(mine, its) for mine, its in zip(forked[0], serial[0], strict=True))
    assert_same(run(tmp_path / "c", *words, "executor=vectorized"), serial)


def test_weights_of_a_file_are_the_start_of_everyone(tmp_path):
    """Batch norm's statistics too; and the frozen features are those of the file."""
    torch.manual_seed(5)
    other = digits_cnn((1, 8, 8), 10, width=4, norm="bn").train()
    other(torch.randn(30, 1, 8, 8))
    save_file(other.state_dict(), tmp_path / "start.safetensors")
    words = ("algorithm=fedavg", *ENCODER, f"model.weights={tmp_path / 'start.safetensors'}")
    experiment, steps = steps_of(tmp_path / "a", *words)
    start = experiment.executor.worker.networks.build().state_dict()
    assert all(torch.equal(tensor.to(start[key]), start[key]) for key, tensor in other.state_dict().items())
    state = steps[0][0].state.params
    assert torch.equal(state["head.fc1.linear.weight"], start["head.fc1.linear.weight"])
    assert_same(run(tmp_path / "b", *words, "model.cached=true"), run(tmp_path / "c", *words))
    other, _ = steps_of(tmp_path / "d", "algorithm=fedavg", *ENCODER, "model.cached=true")
    assert not torch.equal(other.data._train.inputs, experiment.data._train.inputs)
    names = sorted(path.name for path in tmp_path.glob("*/logs/cache/features/*"))
    assert len(names) == len(set(names)) == 4  # training and test examples, by weights


@pytest.mark.parametrize("method", ["fedma", "fedma_oneshot", "pfnm", "ot_fusion"])
def test_methods_that_match_neurons_take_networks_without_frozen_layers_cached_or_not(method, tmp_path):
    """A cached run, whose clients never see those layers, could not be opened again with the whole network."""
    words = (f"algorithm={method}", "model.freeze=[encoder.conv1]")
    reason = r"for \w+Server, which matches the neurons of all layers"
    with pytest.raises(UserError, match=rf"model\.freeze must be \[\] {reason}, but 2 tensors are frozen"):
        steps_of(tmp_path / "a", *words)
    with pytest.raises(ConfigError, match=rf"model\.cached must be false {reason}, but it is True\."):
        steps_of(tmp_path / "b", *words, "model.cached=true")


@pytest.mark.slow
def test_students_of_a_pool_keep_what_is_frozen_in_their_clients_networks(tmp_path):
    """An architecture's student takes steps of the distillation where its clients train, and nowhere else."""
    words = ("algorithm=feddf", "algorithm.server.source=train_pool", "pool=small4")
    experiment, steps = steps_of(tmp_path, *words, "pool.freeze={cnn: [encoder.conv1], mlp: [body]}")
    networks, state = experiment.executor.worker.networks, steps[-1][0].state
    assert set(state.students) == {"cnn", "cnn_bn", "mlp", "resnet"}
    for name, student in state.students.items():
        own = networks.build(networks.key(state.first[name]))
        still = still_keys(own)
        assert set(student.params) == set(own.state_dict()) - set(still)
        assert bool(still) == (name in {"cnn", "mlp"})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("data/transform=mnist_fusion", "+data.transform.size=8"),
            "where training images are augmented, new in every epoch",
        ),
        (("partition=permuted",), "where every client sees the pixels in an order of its own"),
    ],
)
def test_features_that_change_are_not_cached(words, sentence, tmp_path):
    with pytest.raises(ConfigError, match=rf"^model\.cached must be false {sentence} .*, but it is True\.$"):
        steps_of(tmp_path, "algorithm=fedavg", *ENCODER, "model.cached=true", *words)
