"""Presets of the leaderboard: equal work for every method, what each is judged by, and the campaign behind the page."""

from pathlib import Path

import pytest
from presets import axes, composed, files

from fedfeat.commands.python import composed as composed_words
from fedfeat.config.rules import check
from fedfeat.evidence.campaign_file import read_campaign

PRESETS = {name: path for name, path in files("experiment", "board").items() if not name.startswith("base")}
CAMPAIGN = read_campaign(Path(__file__).parents[2] / "results" / "board.yaml")
SERVERS = {
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "moon",
    "fed2",
    "psi_net",
    "fedfusion_conv",
    "heterofl",
    "fedrolex",
    "feddf",
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_setting_of_the_board(name):
    data, _, setting = name.partition("_")
    assert f"# fedfeat --multirun experiment=board/{name}\n" in PRESETS[name].read_text()
    assert axes(PRESETS[name])["seed"] == ["0", "1", "2"]
    config = composed(f"experiment=board/{name}")
    assert (config["group"], config["name"]) == (f"board/{name}", f"{name}-fedavg")
    federation, partition = config["federation"], config["partition"]
    assert (federation["num_clients"], federation["fraction"], federation["local_epochs"]) == (20, None, 2)
    assert (partition["test_share"], partition["val_fraction"]) == (0.25, 0.2)
    inner = {key: partition["inner"].get(key) for key in ("alpha", "classes_per_client")}
    expected = {"pathological": (None, 2), "dir01": (0.1, None), "dir05": (0.5, None)}[setting]
    assert tuple(inner.values()) == expected
    assert (
        config["model"]["_target_"].rpartition(".")[2] == {"c10": "valid_cnn", "digits": "digits_cnn"}[data]
    )


def test_every_method_does_the_same_work_and_is_judged_by_the_clients_own_model():
    (arms,) = {tuple(axes(path)["arm"]) for path in PRESETS.values()}
    assert len(set(arms)) == len(arms)
    for arm in arms:
        config = composed("experiment=board/digits_dir01", f"arm={arm}")
        check(config)
        federation = config["federation"]
        own = "final_all" if arm == "fedbabu" else "personal"
        judged = "global/client_acc_weighted" if arm in SERVERS else f"{own}/acc_weighted"
        assert federation["target_metric"] == judged
        assert (federation["local_epochs"], federation["final_epochs"]) == (
            2,
            2 if arm == "fedbabu" else None,
        )


@pytest.mark.parametrize("board", ["board_digits", "board_pool"])
def test_all_methods_of_a_board_are_tuned_alike_and_run_with_other_seeds(board):
    tune, main = (CAMPAIGN.studies[name] for name in (f"{board}_tune", board))
    assert [*tune.arms] == [*main.arms]
    assert {len(tune.points(arm)) for arm in tune.arms} == {6}
    assert not set(tune.seeds) & set(main.seeds)
    assert "local" in main.arms


def test_the_campaign_has_every_method_of_the_presets():
    (swept,) = {tuple(axes(path)["arm"]) for path in PRESETS.values()}
    found = {words[0] for words in CAMPAIGN.studies["board_digits"].arms.values()}
    assert found == {f"arm={arm}" for arm in swept}


TUNED = [
    (study, arm) for name, study in CAMPAIGN.studies.items() if study.grid != {"": ()} for arm in study.arms
]


@pytest.mark.parametrize(("study", "arm"), TUNED, ids=lambda value: getattr(value, "name", value))
def test_the_tuned_points_of_an_arm_compose(study, arm):
    found = []
    for cell in study.cells():
        if cell.arm == arm:
            cfg = composed_words(CAMPAIGN.words_of(cell))
            found.append((str(cfg.algorithm), str(cfg.structure), str(cfg.optimizer)))
    assert len(set(found)) == 6
