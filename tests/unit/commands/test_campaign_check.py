"""What a campaign's runs would be refused for is said of the first run that has it."""

from dataclasses import replace

import pytest
import torch
import yaml

from fedfeat.commands.campaign_check import check_composed
from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.queue import Queue

SMALL = ("data=digits", "partition=iid", "model=mlp", "trainer=cpu", "optimizer.momentum=0")


def queue(tmp_path, *words):
    arms = {"a0": ("algorithm=fedavg",), "a1": ("algorithm=fedprox",)}
    study = Study("s", words, arms, {"": ()}, {"": ()}, (0, 1))
    return Queue(Campaign("k", SMALL, {}, {"s": study}), tmp_path / "runs", tmp_path / "kept")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optimizer.lr=-1", "optimizer.lr must be in (0, inf), but it is -1."),
        ("+optimizer.nope=1", "optimizer.nope must be a known key"),
        ("+optimizer.nesterov=true", "optimizer must be what torch.optim.SGD takes"),
    ],
)
def test_a_mistake_of_all_runs_is_said_once(tmp_path, word, said):
    with pytest.raises(ConfigError) as error:
        check_composed(queue(tmp_path, word))
    assert str(error.value).startswith(f"s/a0/seed_0: {said}")
    assert "\n" not in str(error.value)


def begin(place, words):
    """What a run that has begun has in its folder."""
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("")
    (place / "overrides.yaml").write_text(yaml.safe_dump([*words]))


def test_a_kind_of_run_that_has_begun_was_accepted_then(tmp_path):
    found = queue(tmp_path, "optimizer.lr=-1")
    for arm in ("a0", "a1"):
        cell = Cell("s", "", arm, "", 1)
        begin(found.runs / cell.name, found.campaign.words_of(cell))
    check_composed(found)


def test_a_run_that_has_begun_with_other_words_is_composed_again(tmp_path):
    found = queue(tmp_path, "optimizer.lr=-1")
    for arm in ("a0", "a1"):
        begin(found.runs / Cell("s", "", arm, "", 1).name, [*SMALL, "optimizer.lr=1"])
    with pytest.raises(ConfigError, match=r"optimizer\.lr must be in"):
        check_composed(found)


def test_a_precision_that_this_machine_emulates_is_said_once_where_runs_are_made_here(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    word = "trainer.precision=bf16-mixed"
    assert check_composed(queue(tmp_path, word)) == [
        "s/a0/seed_0: trainer.precision=bf16-mixed is emulated by this processor: some ten times slower than 32-true."
    ]
    assert check_composed(queue(tmp_path)) == []
    elsewhere = replace(queue(tmp_path, word), launcher="submitit_slurm")
    assert check_composed(elsewhere) == []
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert check_composed(queue(tmp_path, word)) == []
