"""A search tells Optuna what runs measured on validation data, goes on after a kill, and ends what is worse."""

import csv
import io
import json

import pytest
import yaml
from rich.console import Console

from fedfeat.commands.tune_report import best_trial, conclude, overview
from fedfeat.config.spaces import dimension
from fedfeat.errors import DIVERGED, ConfigError
from fedfeat.evidence.lengths import Standing
from fedfeat.evidence.processes import LOG, work
from fedfeat.evidence.search import FAILED, Search, validated_rounds
from fedfeat.evidence.study import Asked, opened, propose, rehearsed
from fedfeat.runs.directory import FAILURE

SPACE = {
    "optimizer.lr": dimension("optimizer.lr", "tag(log, interval(1e-3, 1))"),
    "a.b": dimension("a.b", "x,y"),
}


@pytest.fixture
def search(tmp_path):
    """Open the study of the folder; a second time, it is as after a kill."""

    def make(trials=4, words=("data=digits",), space=SPACE, **more):
        asked = Asked(tuple(words), space, **{"startup": 1, "seed": 1, **more})
        return Search(tmp_path, asked, opened(tmp_path, asked), trials)

    return make


def measured(place, val, test=(0.5,) * 9, finished=True, name="val/acc", target=None):
    """Write what a run leaves behind."""
    place.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{at},{value},{test[at]}\n" for at, value in enumerate(val))
    (place / "metrics.csv").write_text(f"round,{name},global/acc\n{rows}")
    (place / "config.yaml").write_text(yaml.safe_dump({"federation": {"target_metric": target}}))
    (place / LOG).write_text("round 3/9\nfedfeat: something must be, but it is not.\n")
    if finished:
        (place / "summary.json").write_text(json.dumps({"seed": 0, "final": {}}))


class Running:
    """A process that notes what it is sent."""

    def __init__(self):
        self.sent = []

    def send_signal(self, sig):
        self.sent.append(sig)


def states(search):
    return [trial.state.name for trial in search.study.get_trials()]


def test_what_is_best_on_validation_data_wins_whatever_the_test_says(search):
    one = search()
    for val, test in (([0, 0.2, 0.2, 0.2], [0.9] * 4), ([0, 0.7, 0.8, 0.9], [0.1] * 4)):
        number = one.ready([])
        measured(one.place(number), val, test)
        one.look({number: Running()})
        one.ended(number, 0)
    assert states(one) == ["COMPLETE"] * 2
    assert one.study.best_trial.number == 1
    assert [trial.value for trial in one.study.trials] == pytest.approx([0.2, 0.8])
    assert [trial.intermediate_values for trial in one.study.trials] == [
        dict.fromkeys((1, 2, 3), 0.2),
        {1: 0.7, 2: 0.8, 3: 0.9},
    ]


def test_nothing_is_told_without_validation_data(search):
    one = search()
    number = one.ready([])
    measured(one.place(number), [0.5] * 3, name="train/loss")
    assert validated_rounds(one.place(number)) == []
    with pytest.raises(ConfigError, match=r"^partition.val_fraction must be above 0"):
        one.ended(number, 0)


def test_what_is_measured_in_the_end_alone_cuts_nothing_short(search, tmp_path):
    tuned = {"name": "final_all/val_acc_weighted", "target": "final_all/acc_weighted"}
    measured(tmp_path / "run", ["", "", "0.7"], **tuned)
    assert validated_rounds(tmp_path / "run") == []


def test_below_the_median_of_its_round_a_run_is_ended_once_and_kept(search):
    one = search()
    good = one.ready([])
    measured(one.place(good), [0, 0.5, 0.6, 0.7])
    one.look({good: Running()})
    one.ended(good, 0)
    bad, process = one.ready([]), Running()
    measured(one.place(bad), [0, 0.4], finished=False)
    one.look({bad: process})
    one.look({bad: process})
    assert len(process.sent) == 1
    one.ended(bad, 143)
    assert states(one) == ["COMPLETE", "PRUNED"]
    assert (one.place(bad) / LOG).read_text().splitlines()[-1] == "pruned after round 1"
    better, process = one.ready([]), Running()
    measured(one.place(better), [0, 0.4, 0.65], finished=False)
    one.look({better: process})
    assert process.sent == []
    assert (one.place(bad) / "metrics.csv").exists()


def test_of_a_trial_that_is_cut_short_its_last_round_counts(search):
    one = search()
    whole = one.ready([])
    measured(one.place(whole), [0, 0.6, 0.7])
    one.look({whole: Running()})
    one.ended(whole, 0)
    cut = one.ready([])
    measured(one.place(cut), [0, 0.65, 0.2], finished=False)
    one.look({cut: Running()})
    one.ended(cut, 143)
    assert states(one) == ["COMPLETE", "PRUNED"]
    conclude(one, Console(file=io.StringIO()))
    with (one.folder / "trials.csv").open() as file:
        found = [(row["trial"], row["val_acc"], row["state"]) for row in csv.DictReader(file)]
    assert found[1] == ("1", "0.2000", "cut short, round 2")


def test_time_left_falls_as_trials_end(search, monkeypatch):
    one = search()
    monkeypatch.setattr(one, "standing", lambda number: Standing(2, 2, 60.0))
    said = []
    for _ in range(2):
        number = one.ready([])
        measured(one.place(number), [0, 0.5])
        one.look({number: Running()})
        one.ended(number, 0)
        said.append(str(overview(one, [], at_once=1).renderables[0]))
    assert said == ["1 finished of 4, 3 min left at most", "2 finished of 4, 2 min left at most"]


def test_early_rounds_and_the_first_trials_are_not_cut(search):
    one = search(startup=2, warmup=2)
    numbers = []
    for val in ([0, 0.5, 0.5], [0, 0.1, 0.1], [0, 0.0]):
        numbers.append(one.ready(numbers))
        measured(one.place(numbers[-1]), val)
        process = Running()
        one.look({numbers[-1]: process})
        assert process.sent == []
        if len(val) == 3:
            one.ended(numbers[-1], 0)


def test_after_a_kill_the_trials_under_way_come_first_and_the_next_are_those_of_an_undisturbed_search(
    search, tmp_path
):
    first = search()
    running = [first.ready([]), first.ready([0])]
    words = [first.words(number) for number in running]
    undisturbed = rehearsed(tmp_path / "elsewhere", first.asked)
    for _ in range(3):
        propose(undisturbed, first.asked)
    again = search()
    assert [again.ready([]), again.ready([0])] == [0, 1]
    assert [again.words(number) for number in (0, 1)] == words
    assert again.ready([0, 1]) == 2
    assert [one.params for one in again.study.trials] == [one.params for one in undisturbed.trials]


def test_what_ended_while_nobody_looked_is_told_and_not_started(search):
    one = search()
    finished, worse = one.ready([]), one.ready([0])
    measured(one.place(finished), [0, 0.5, 0.6])
    measured(one.place(worse), [0, 0.4], finished=False)
    again = search()
    assert again.ready([]) == 2
    assert states(again) == ["COMPLETE", "PRUNED", "RUNNING"]
    assert again.trial(0).intermediate_values == {1: 0.5, 2: 0.6}


def test_a_trial_that_was_cut_while_it_was_proposed_is_proposed_again(search):
    one = search(trials=1)
    one.study.ask()  # without values
    assert one.ready([]) == 1
    assert states(one) == ["FAIL", "RUNNING"]
    assert one.ready([1]) is None


def test_a_failure_has_its_sentence_and_three_without_a_success_are_the_end(search):
    one = search(trials=9)
    for number in range(3):
        assert one.ready([]) == number
        measured(one.place(number), [0], finished=False)
        one.ended(number, 2)
    assert states(one) == ["FAIL"] * 3
    sentence = "exit 2: fedfeat: something must be, but it is not."
    assert one.trial(0).user_attrs[FAILED] == sentence
    assert (one.place(0) / LOG).read_text().splitlines()[-1] == sentence
    assert one.ready([]) is None
    assert one.gave_up
    again = search(trials=9)  # the cause may have passed
    assert not again.gave_up
    assert again.ready([]) == 3


def test_a_client_that_diverged_is_told_as_bad_values_and_is_never_the_best(search):
    one = search()
    number = one.ready([])
    measured(one.place(number), [0], finished=False)
    sentence = f"Client 1 in round 1 failed: {DIVERGED}."
    (one.place(number) / FAILURE).write_text(sentence)
    one.ended(number, 2)
    assert (states(one), one.trial(number).value) == (["COMPLETE"], 0.0)
    assert one.trial(number).user_attrs[FAILED] == f"exit 2: {sentence}"
    assert best_trial(one) is None


def test_a_run_that_diverged_is_as_bad_as_can_be(search):
    one = search()
    number = one.ready([])
    measured(one.place(number), [0, 0.5, "nan"])
    one.ended(number, 0)
    assert one.trial(number).value == 0.0
    assert best_trial(one) is None


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"words": ["data=synthetic"]}, "words"),
        ({"space": {"optimizer.lr": SPACE["optimizer.lr"]}}, "space"),
        ({"seed": 2}, "seed"),
    ],
)
def test_the_folder_of_another_search_is_refused(search, more, named):
    search()
    with pytest.raises(ConfigError, match=f"^--out must be a new folder, or one of the same {named} "):
        search(**more)


def test_trials_on_other_data_are_not_compared(search):
    one, two = search(), search(words=["data=digits", "data.root=/moved"])
    for which, digest, refused in ((one, "x", False), (two, "x", False), (two, "y", True)):
        number = which.ready([])
        measured(which.place(number), [0, 0.5])
        (which.place(number) / "data.json").write_text(json.dumps({"fingerprint": [digest, "s"]}))
        if refused:
            with pytest.raises(
                ConfigError, match=r"^--out must be a new folder for other data .*/0002 are not those"
            ):
                which.ended(number, 0)
        else:
            which.ended(number, 0)


def test_work_makes_as_many_as_there_are_and_no_more_at_once(search, monkeypatch):
    one = search(trials=5)

    class Done(Running):
        def poll(self):
            return 0

        def wait(self):
            return 0

    def start(number):
        measured(one.place(number), [0, 0.5 + number / 10])
        return Done()

    monkeypatch.setattr(one, "start", start)
    at_once = [len(running) for running in work(one, 2, 0, one.look)]
    assert states(one) == ["COMPLETE"] * 5
    assert max(at_once) == 2
