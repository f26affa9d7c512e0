"""What an arm is tuned to, by validation accuracy alone; and what makes a finished run the one that is asked for."""

import pytest
import yaml

from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.stored import check_words, keep
from fedfeat.evidence.tuning import chosen_point, point_scores


@pytest.fixture
def place(tmp_path):
    """Write the metrics of a run; give its cell and folder."""

    def make(point, val, test=0.5, seed=0, name="val/acc", target=None):
        folder = tmp_path / point / str(seed)
        folder.mkdir(parents=True)
        rows = "".join(f"{at},{value},{test}\n" for at, value in enumerate(val))
        (folder / "metrics.csv").write_text(f"round,{name},global/acc\n{rows}")
        (folder / "config.yaml").write_text(yaml.safe_dump({"federation": {"target_metric": target}}))
        return Cell("tune", "", "arm", point, seed), folder

    return make


def test_the_last_three_evaluations_decide_and_no_test_data(place):
    places = dict(
        [
            place("early", [0.9, 0.9, 0.1, 0.2, 0.3], test=0.9),
            place("late", [0.1, 0.1, 0.2, 0.3, 0.4], test=0.1),
        ]
    )
    assert point_scores(places) == {"early": pytest.approx(0.2), "late": pytest.approx(0.3)}
    assert chosen_point(places) == "late"


def test_the_untrained_model_is_none_of_the_last_three(place):
    """Of two rounds there are two; clients' own models right after their fits have no number before the first."""
    assert point_scores(dict([place("few", [0.1, 0.6, 0.7])])) == {"few": pytest.approx(0.65)}
    own = {"name": "local_pre_agg/val_acc_mean", "target": "local_pre_agg/acc_mean"}
    assert point_scores(dict([place("own", ["", 0.6, 0.7], **own)])) == {"own": pytest.approx(0.65)}


def test_a_round_that_a_repair_has_lost_is_none_of_the_last_three(place):
    cell, folder = place("repaired", [])
    (folder / "metrics.csv").write_text("round,val/acc,repaired\n1,0.6,\n2,,1\n3,0.8,\n4,0.7,1\n")
    assert point_scores({cell: folder}) == {"repaired": pytest.approx(0.7)}


def test_seeds_are_averaged_and_the_first_among_equals_is_taken(place):
    one = [
        place("a", [0.2] * 3),
        place("a", [0.6] * 3, seed=1),
        place("b", [0.5] * 3),
        place("b", [0.3] * 3, seed=1),
    ]
    assert point_scores(dict(one)) == {"a": pytest.approx(0.4), "b": pytest.approx(0.4)}
    assert chosen_point(dict(one)) == "a"


@pytest.mark.parametrize("broken", ["nan", "inf", ""])
def test_a_point_that_diverged_is_never_chosen(place, broken):
    places = dict([place("wild", [0.9, 0.9, broken]), place("calm", [0.1] * 3)])
    assert chosen_point(places) == "calm"
    assert point_scores(places)["wild"] == float("-inf")


def test_what_a_run_is_judged_by_decides_on_validation_data(place):
    own = {"name": "personal/val_acc_weighted", "target": "personal/acc_weighted"}
    places = dict([place("few", [0.9, 0.2, 0.2, 0.2], **own), place("many", [0.1, 0.3, 0.3, 0.3], **own)])
    assert point_scores(places) == {"few": pytest.approx(0.2), "many": pytest.approx(0.3)}
    tuned = {"name": "final_all/val_acc_weighted", "target": "final_all/acc_weighted"}
    # After fine-tuning there is a value in the last round alone.
    assert point_scores(dict([place("after", ["", "", "", 0.7], **tuned)])) == {"after": 0.7}


def test_without_validation_data_nothing_is_tuned(place):
    places = dict([place("blind", [0.5], name="train/loss")])
    with pytest.raises(
        ConfigError, match=r"^partition.val_fraction must be above 0 in a study that others are"
    ):
        chosen_point(places)


@pytest.mark.parametrize(
    ("made", "asked", "named"),
    [
        (["a=1", "b=2"], ["b=2", "a=1"], None),
        (["a=1", "executor=serial", "federation.checkpoint_every=1"], ["a=1", "executor=processes"], None),
        (["a=1"], ["a=1", "b=2"], "no such word, where the campaign has b=2"),
        (["a=1", "b=2"], ["a=1"], "b=2, where the campaign has no such word"),
        (["a=1"], ["a=2"], "a=1, where the campaign has a=2"),
    ],
)
def test_a_run_is_the_one_that_is_asked_for_by_the_words_that_fix_numbers(tmp_path, made, asked, named):
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(made))
    if named is None:
        check_words(tmp_path, asked)
        return
    with pytest.raises(ConfigError, match=f"but it was made with {named}.$"):
        check_words(tmp_path, asked)


def test_what_is_kept_of_a_run_may_be_a_picture(tmp_path):
    run = tmp_path / "run"
    (run / "figures").mkdir(parents=True)
    (run / "config.yaml").write_text(
        yaml.safe_dump({"name": "x", "group": "y", "federation": {"num_rounds": 1}})
    )
    (run / "metrics.csv").write_text("round,global/acc\n0,0.1\n")
    (run / "summary.json").write_text("{}")
    (run / "figures" / "overview.png").write_bytes(b"\x89PNG\r\n\xff\x00")
    keep(run, tmp_path / "kept", ["a=1"], ["figures/overview.png"])
    assert (tmp_path / "kept" / "figures" / "overview.png").read_bytes() == b"\x89PNG\r\n\xff\x00"
