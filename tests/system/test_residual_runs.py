"""Whole runs of group-separated networks with residual streams: ten classes, ten groups."""

import csv

import pytest

TINY = (
    *("data=synthetic", "data.loader.shape=[1,8,8]", "data.loader.num_train=40", "data.loader.num_test=20"),
    *("partition=n_classes", "partition.classes_per_client=3", "federation.num_clients=4"),
    *("federation.num_rounds=2", "federation.local_epochs=1", "trainer.accelerator=cpu"),
)


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("psi_net", ("model=resnet18_gn",)),
        ("psi_net", ("model=resnet18_gn", "structure.layer_unit=conv", "structure.depth=14")),
        ("fed2", ("model=torchvision", "model.arch=resnet18")),
    ],
    ids=["resnet18_gn", "resnet18_gn-inside", "resnet18"],
)
def test_residual_networks_run_with_ten_groups(cli, tmp_path, method, model):
    run = tmp_path / "run"
    result = cli(*TINY, f"algorithm={method}", *model, f"hydra.run.dir={run}")
    assert result.code == 0, result
    metrics = rows_of(run / "metrics.csv")
    assert [row["round"] for row in metrics] == ["0", "1", "2"]
    sent, received = (float(metrics[-1][f"comm/{way}_bytes"]) for way in ("up", "down"))
    assert sent == received > 0
    assert float(metrics[-1]["compute/flops"]) > 0


def test_a_width_that_groups_cannot_have_is_refused_with_one_that_they_can(cli):
    structure = (
        "algorithm=fed2",
        "structure.width_policy=uneven",
        "model=torchvision",
        "model.arch=efficientnet_b0",
    )
    result = cli(*TINY, *structure, "data.loader.shape=[3,32,32]", "structure.depth=2")
    assert result.code != 0
    assert "structure.groups must be at most 4 with structure.width_policy=uneven" in result.stderr
