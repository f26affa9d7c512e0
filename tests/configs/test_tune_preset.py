"""The preset of a trial composes to what its words do."""

import pytest

from fedfeat.commands.python import accepted
from fedfeat.commands.tune_preset import deletions, preset_of
from fedfeat.runs.directory import experiment_config

BEST = ["optimizer.lr=0.0123", "federation.local_epochs=5", "model.hidden=[4]"]


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=fedprox", "model=mlp", *BEST, "algorithm.client.mu=0.01"],
        ["experiment=digits_10x3", "model=mlp", *BEST, "seed=3"],
        # What a scale says gives way to a word, as on the command line; and the scale to an arm before it.
        [
            "experiment=digits_10x3",
            "scale=mini",
            "arm=fedavg_momentum",
            "model=mlp",
            *BEST,
            "federation.num_rounds=3",
        ],
        ["algorithm=fedadam", "algorithm/server@algorithm.server.average=fed2", "structure=grouped", BEST[0]],
        ["data@public=cifar100", "algorithm=feddf", BEST[0], "hydra.sweep.dir=x"],
        [
            "experiment=board/digits_dir01",
            "arm=ditto",
            "algorithm.client.lam=0.5",
            "logger=[tensorboard,wandb]",
        ],
    ],
)
def test_it_composes_to_the_same_run(words, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "tuned.yaml").write_text(preset_of(words, "Trial 3."))
    _, expected = accepted(words)
    _, found = accepted(["experiment=tuned", f"hydra.searchpath=[file://{tmp_path}]"])
    assert experiment_config(found) == experiment_config(expected)
    assert found["logger"].keys() == expected["logger"].keys()


def test_what_is_deleted_stands_beside_the_preset(tmp_path):
    words = [
        "experiment=digits_10x3",
        "model=mlp",
        "~optimizer.momentum",
        "~optimizer.weight_decay=0.0",
        BEST[0],
    ]
    (tmp_path / "experiment").mkdir()
    text = preset_of(words, "Trial 3.")
    (tmp_path / "experiment" / "tuned.yaml").write_text(text)
    assert "weight_decay" not in text
    assert deletions(words) == words[2:4]
    _, expected = accepted(words)
    _, found = accepted(["experiment=tuned", f"hydra.searchpath=[file://{tmp_path}]", *deletions(words)])
    assert experiment_config(found) == experiment_config(expected)
    assert "momentum" not in found["optimizer"]
