"""Names of settings: what a person would write."""

from pathlib import Path

import pandas as pd
import pytest

from fedfeat.runs.finished import Run
from fedfeat.runs.labels import data_sets, group_runs, label_runs, label_settings, name_settings


def run(seed=0, algorithm="fedavg", data="digits", partition="NClasses", by_hand=(), facts="", **more):
    """A run as its directory has it; ``choices`` are Hydra's record, other keywords further keys."""
    choices = more.pop("choices", {})
    setting = {
        "algorithm.name": algorithm,
        "data.name": data,
        "partition._target_": f"x.schemes.{partition}",
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    summary = {"seed": seed, "algorithm": algorithm, "final": {}}
    places = f"/pictures/{facts}"
    return Run(Path("r"), summary, setting, {}, pd.DataFrame(), choices, frozenset(by_hand), facts, places)


def named(runs):
    """Labels and seeds, in the order in which a report has them."""
    settings = group_runs(runs)
    naming = name_settings(settings)
    settings = sorted(settings, key=naming.order)
    seeds = [[one.summary["seed"] for one in setting.runs] for setting in settings]
    return dict(zip(label_settings(settings, naming), seeds, strict=True))


def test_the_algorithm_stands_first_even_where_another_key_tells_the_settings_apart():
    """As a user had it: methods with rounds of their own, on other data too; rows were called after the rounds."""
    rounds = {"federation__num_rounds": 8}, {"federation__num_rounds": 3}, {"federation__num_rounds": 5}
    runs = [
        run(algorithm="fedavg", by_hand=["federation.num_rounds"], **rounds[0]),
        run(algorithm="scaffold", by_hand=["federation.num_rounds"], **rounds[1]),
        run(algorithm="scaffold", data="cifar10", by_hand=["federation.num_rounds"], **rounds[2]),
    ]
    assert list(named(runs)) == [
        "fedavg, digits, federation.num_rounds=8",
        "scaffold, cifar10, federation.num_rounds=5",
        "scaffold, digits, federation.num_rounds=3",
    ]
    assert data_sets(group_runs(runs)) == ["cifar10", "digits"]


def test_rows_are_sorted_by_numbers_as_numbers_and_what_lacks_the_key_comes_first():
    runs = [run(algorithm="fed2", by_hand=["structure.groups"], structure__groups=n) for n in (10, 2, 100)]
    runs += [run(algorithm="fed2"), run(algorithm="fedavg")]
    assert list(named(runs)) == [
        "fed2",
        "fed2, structure.groups=2",
        "fed2, structure.groups=10",
        "fed2, structure.groups=100",
        "fedavg",
    ]


def test_runs_that_differ_only_in_the_seed_are_one_setting():
    assert named([run(2), run(0), run(1), run(0, "fedprox")]) == {"fedavg": [0, 1, 2], "fedprox": [0]}


def test_a_fixed_inner_seed_is_no_part_of_the_seed():
    """partition.seed is 1 in both runs, hence one setting, although the second run's seed happens to be 1."""
    assert named([run(0, partition__seed=1), run(1, partition__seed=1)]) == {"fedavg": [0, 1]}
    assert named([run(0, partition__seed=0), run(1, partition__seed=1)]) == {"fedavg": [0, 1]}
    assert named([run(0, partition__seed=7), run(0, partition__seed=8)]) == {
        "fedavg, partition.seed=7": [0],
        "fedavg, partition.seed=8": [0],
    }
    assert named([run(0, partition__seed=0), run(0, partition__seed=1)]) == {
        "fedavg, partition.seed=0": [0],
        "fedavg, partition.seed=1": [0],
    }


def test_an_inner_seed_that_some_runs_lack_follows_the_seed_in_the_others():
    runs = [run(seed, "fed2", structure__seed=seed) for seed in (0, 1)] + [run(seed) for seed in (0, 1)]
    assert named(runs) == {"fed2": [0, 1], "fedavg": [0, 1]}


def test_what_follows_from_the_words_is_not_repeated():
    """Two partitions with keys of their own, which no hand has given."""
    runs = [run(partition="Dirichlet", partition__alpha=0.5), run(partition="Iid", partition__equal=True)]
    assert list(named(runs)) == ["fedavg, dirichlet", "fedavg, iid"]


def test_keys_that_nobody_gave_are_taken_only_where_they_are_needed():
    runs = [run(lr=0.1, warm=1), run(lr=0.2, warm=1), run(lr=0.1, warm=2)]
    assert list(named(runs)) == ["fedavg, lr=0.1, warm=1", "fedavg, lr=0.1, warm=2", "fedavg, lr=0.2, warm=1"]


def test_three_keys_are_searched_for_before_all_are_written():
    """All eight settings of a, b and c; the longer key says nothing that these do not."""
    runs = [run(a=n % 2, b=n // 2 % 2, c=n // 4, longer=n % 2 + n // 4) for n in range(8)]
    assert list(named(runs))[1] == "fedavg, a=0, b=0, c=1"


def test_many_differing_keys_still_give_different_labels():
    """Five binary switches, one setting each with one switch on, and all off: no three keys suffice."""
    runs = [run(**{f"k{i}": int(i == on) for i in range(5)}) for on in range(6)]
    assert len(named(runs)) == 6


def test_hydras_record_names_options_and_others_that_do_not_follow():
    """Uncapped and capped Dirichlet are one class; the optimizer differs too, the structure follows the algorithm."""

    def one(algorithm, partition, optimizer, structure):
        options = {
            "algorithm": "ignored",
            "partition": partition,
            "optimizer": optimizer,
            "structure": structure,
        }
        keys = {"optimizer__kind": optimizer, "structure__kind": structure, "partition__cap": partition}
        silent = {"hydra/launcher": optimizer, "experiment": optimizer, "logger": optimizer}
        return run(algorithm=algorithm, partition="Dirichlet", choices=options | silent, **keys)

    runs = [one("fed2", "dirichlet", "sgd", "grouped"), one("fedavg", "dirichlet_uncapped", "adam", "none")]
    runs += [one("fedavg", "dirichlet_uncapped", "sgd", "none")]
    assert list(named(runs)) == [
        "fed2, dirichlet, optimizer=sgd",
        "fedavg, dirichlet_uncapped, optimizer=adam",
        "fedavg, dirichlet_uncapped, optimizer=sgd",
    ]


def test_a_directory_without_hydras_record_is_named_by_its_configuration():
    runs = [run(choices={"partition": "my_split"}, x=1), run(partition="QuantitySkew", x=2)]
    assert list(named(runs)) == ["fedavg, n_classes", "fedavg, quantity_skew"]


def test_two_folders_of_images_under_one_name_are_two_data_sets():
    runs = [run(data="image_folder", facts="cats"), run(1, data="image_folder", facts="dogs")]
    assert named(runs) == {"fedavg, image_folder (cats)": [0], "fedavg, image_folder (dogs)": [1]}
    assert len(data_sets(group_runs(runs))) == 2


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([run(0), run(1)], ["fedavg, seed=0", "fedavg, seed=1"]),
        ([run(0), run(0, "fed2")], ["fedavg", "fed2"]),
        ([run(0), run(0)], ["fedavg (1)", "fedavg (2)"]),
        ([run(0, lr=[1, 2]), run(0, lr=None)], ["fedavg, lr=[1,2]", "fedavg, lr=null"]),
    ],
)
def test_runs_one_by_one_are_told_apart_by_seed_or_number(runs, expected):
    assert label_runs(runs) == expected


def test_arms_are_named_by_what_they_set():
    """A list of arms gives the algorithm and the groups, which no hand has given: `arm=[fed2,groups_10]`."""

    def one(algorithm, arm, **keys):
        return run(algorithm=algorithm, choices={"algorithm": algorithm, "arm": arm}, **keys)

    runs = [
        one("fed2", f"['fed2', 'groups_{n}']", structure__groups=n, structure__trim=False) for n in (20, 10)
    ]
    runs.append(one("fedavg", "fedavg"))
    assert list(named(runs)) == ["fed2, structure.groups=10", "fed2, structure.groups=20", "fedavg"]


def test_a_group_of_which_nothing_is_taken_is_no_key():
    """`diagnostics=none` leaves the key `diagnostics: null`, which the other run does not have."""
    runs = [
        run(choices={"diagnostics": "none"}, by_hand=["diagnostics"], diagnostics=None),
        run(choices={"diagnostics": "alignment"}, by_hand=["diagnostics"], diagnostics__every=5),
    ]
    assert list(named(runs)) == ["fedavg, diagnostics=alignment", "fedavg, diagnostics=none"]
    settings = group_runs(runs)
    naming = name_settings(settings)
    assert (naming.words, naming.keys) == (("algorithm", "diagnostics"), ())
    assert {setting.get("diagnostics") for setting in settings} == {"none", "alignment"}


def test_whether_a_seed_follows_is_decided_among_runs_that_are_alike_otherwise():
    """As sent140's loader has the run's seed and the synthetic one a fixed one, in one report."""
    runs = [run(seed, data="sent140", data__loader__seed=seed) for seed in (0, 1, 2)]
    runs += [run(seed, data="synthetic", data__loader__seed=0) for seed in (0, 1, 2)]
    assert named(runs) == {"fedavg, sent140": [0, 1, 2], "fedavg, synthetic": [0, 1, 2]}
