"""The comparison in a report: what counts as a method and what as a setting, in Markdown and on the terminal."""

import json

import pytest
from report_runs import make_run

from fedfeat.commands.report import main
from fedfeat.commands.report_gathered import gather
from fedfeat.errors import DIVERGED, ConfigError
from fedfeat.runs.finished import find_runs

PLAIN = ("--x", "algorithm")


def make_all(folder, methods, settings=("iid",), seeds=(0, 1, 2)):
    """Runs of methods (name to accuracy, growing with the seed) on partitions."""
    for setting in settings:
        for method, acc in methods.items():
            for seed in seeds:
                partition = {"seed": seed, "_target_": f"x.{setting}"}
                place = folder / f"{setting}-{method}-{seed}"
                make_run(place, seed, method, acc=acc + 0.1 * seed, partition=partition)


def compared(folder, against=None):
    return gather(find_runs([folder])[0], against=against).compared


def test_markdown_and_terminal_have_the_same_table(tmp_path, capsys):
    """0.6, 0.7, 0.8 against 0.5, 0.6, 0.7: 0.1 ahead in each of three seeds."""
    make_all(tmp_path / "in", {"fedavg": 0.5, "fed2": 0.6})
    main([str(tmp_path / "in"), *PLAIN, "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "## Methods compared by global/acc\n" in text
    assert "| method | less fedavg | 95% interval | better in |" in text
    assert "| fed2 | +0.1 | [+0.1, +0.1] | 3 of 3 seeds |" in text
    shown = " ".join(capsys.readouterr().out.split())
    assert "│ fed2 │ +0.1 │ [+0.1, +0.1] │ 3 of 3 seeds │" in shown
    sentence = "the interval is Student's t, each by itself at 95%: of twenty, one misses by chance."
    assert sentence in text
    assert sentence in shown
    assert "Ranks" not in text  # of one setting


def test_too_few_seeds_are_refused_in_a_sentence(tmp_path):
    make_all(tmp_path, {"fedavg": 0.5, "fed2": 0.6}, seeds=(0, 1))
    found = compared(tmp_path)
    assert found.pair_lines()["95% interval"].tolist() == ["-"]
    assert found.notes == [
        "Differences are paired by seed, of which the split is common, and the first weights of one network; an "
        "interval takes 3 common seeds, and no pair has as many."
    ]


def test_ranks_need_two_settings_that_are_complete(tmp_path):
    make_all(tmp_path, {"fedavg": 0.5, "fed2": 0.6}, ["p0"], seeds=(0,))
    make_all(tmp_path, {"fedavg": 0.5, "fedprox": 0.6}, ["p1"], seeds=(0,))
    sentence = "Ranks over settings need at least two settings in which all methods ran; there are none."
    assert sentence in compared(tmp_path).notes


def test_too_few_settings_are_refused_in_a_sentence_and_six_are_enough(tmp_path):
    make_all(tmp_path / "few", {"fedavg": 0.5, "fed2": 0.6}, [f"p{i}" for i in range(3)], seeds=(0,))
    few = compared(tmp_path / "few")
    assert few.rank_lines().to_numpy().tolist() == [["fed2", "1.00"], ["fedavg", "2.00"]]
    assert few.notes[-1] == (
        "No significance is given: with 3 settings and 2 methods the smallest p that the test can have is 0.25, "
        "above 0.05."
    )
    make_all(tmp_path / "six", {"fedavg": 0.5, "fed2": 0.6}, [f"p{i}" for i in range(6)], seeds=(0,))
    six = compared(tmp_path / "six")
    assert six.rank_lines().to_numpy().tolist() == [["fed2", "1.00", "0.031"], ["fedavg", "2.00", "-"]]
    assert "Wilcoxon's signed-rank test" in six.notes[-1]


def test_keys_of_the_method_belong_to_it_and_others_to_the_setting(tmp_path):
    """One depth each: the method is fed2 alone. Two depths in a setting: they are two methods."""
    for alpha in (0.1, 0.5):
        partition = {"alpha": alpha}
        make_run(tmp_path / f"a{alpha}", 0, "fedavg", partition=partition)
        make_run(tmp_path / f"b{alpha}", 0, "fed2", partition=partition, structure={"depth": int(alpha * 10)})
    one = compared(tmp_path)
    assert [(pair.setting, pair.method) for pair in one.pairs] == [
        ("partition.alpha=0.1", "fed2"),
        ("partition.alpha=0.5", "fed2"),
    ]
    make_run(tmp_path / "c", 0, "fed2", partition={"alpha": 0.1}, structure={"depth": 7})
    two = compared(tmp_path)
    assert {pair.method for pair in two.pairs} == {f"fed2, structure.depth={depth}" for depth in (1, 5, 7)}


def test_fedavg_is_what_others_are_compared_with_also_where_its_arms_carry_a_key(tmp_path):
    here, there = {"alpha": 0.1}, {"alpha": 0.5}
    for depth in (1, 5):
        make_run(tmp_path / f"a{depth}", 0, "fedavg", partition=here, structure={"depth": depth})
    make_run(tmp_path / "b", 0, "fed2", partition=here)
    make_run(tmp_path / "c", 0, "fed2", partition=there)
    make_run(tmp_path / "d", 0, "fedprox", partition=there)
    assert compared(tmp_path).against.startswith("fedavg, structure.depth=")


def test_against_chooses_the_other_and_what_is_none_is_refused(tmp_path, capsys):
    make_all(tmp_path / "in", {"fedavg": 0.5, "fed2": 0.6, "moon": 0.4})
    assert compared(tmp_path / "in", "moon").against == "moon"
    assert {pair.method for pair in compared(tmp_path / "in", "moon").pairs} == {"fedavg", "fed2"}
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "in"), "--against", "mon", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().err == (
        "fedfeat-report: --against must be a method of the comparison, but it is 'mon' (did you mean moon?).\n"
    )


def test_against_a_method_that_ran_alone_is_refused(tmp_path):
    make_all(tmp_path, {"fed2": 0.5, "moon": 0.4}, ["p1", "p2"])
    make_all(tmp_path, {"fedavg": 0.5}, ["p3"])
    with pytest.raises(
        ConfigError, match=r"--against must have run in a setting of another method, but it is 'fedavg'"
    ):
        compared(tmp_path, "fedavg")
    assert compared(tmp_path, "moon").against == "moon"


def test_where_no_setting_has_two_methods_nothing_is_compared(tmp_path):
    make_all(tmp_path, {"fed2": 0.5}, ["p1", "p2"])
    assert compared(tmp_path) is None


@pytest.mark.parametrize(("name", "ahead"), [("to_target/0.3/rounds", 1), ("global/acc", 2)])
def test_less_is_better_of_costs(tmp_path, name, ahead):
    for seed, (ours, theirs) in enumerate([(2, 3), (4, 3), (5, 3)]):
        make_run(tmp_path / f"a{seed}", seed, "fedavg", acc=0.5, reached=theirs)
        make_run(tmp_path / f"b{seed}", seed, "fed2", acc=0.4 + 0.1 * seed + 0.05, reached=ours)
    (pair,) = gather(find_runs([tmp_path])[0], [name]).compared.pairs
    assert (pair.method, pair.ahead) == ("fed2", ahead)


def test_different_quantities_are_named(tmp_path):
    """Clients that train alone have no server's model."""
    make_run(tmp_path / "a", 0, "fedavg", acc=0.5)
    place = make_run(tmp_path / "b", 0, "local", acc=0.7)
    for name in ("metrics.csv", "summary.json"):
        (place / name).write_text((place / name).read_text().replace("global/acc", "personal/acc_mean"))
    found = compared(tmp_path)
    assert found.notes[0] == (
        "Not all are compared by the same quantity: global/acc of fedavg; personal/acc_mean of local."
    )
    assert found.pair_lines()["less fedavg"].tolist() == ["+0.2"]


def test_who_never_came_to_a_target_is_behind_and_a_note_says_so(tmp_path):
    for seed, (fedavg, fed2) in enumerate([(3, 4), (None, 2), (None, 2), (None, 2)]):
        make_run(tmp_path / f"fedavg-{seed}", seed, "fedavg", reached=fedavg)
        make_run(tmp_path / f"fed2-{seed}", seed, "fed2", reached=fed2)
    found = gather(find_runs([tmp_path])[0], ("to_target/0.3/rounds",)).compared
    (line,) = found.pair_lines().to_dict("records")
    assert (line["less fedavg"], line["better in"]) == ("-inf", "3 of 4 seeds")
    rule = "a seed in which neither of two came there is in no difference; no mean where each was there alone once"
    assert f"Infinite where a run never came there ({rule}): fedavg in 3 of 4 runs." in found.notes


def test_seeds_in_which_nobody_came_to_a_target_are_in_no_difference(tmp_path):
    for seed, (fedavg, fed2) in enumerate([(3, 5), (None, None), (None, None)]):
        make_run(tmp_path / f"fedavg-{seed}", seed, "fedavg", reached=fedavg)
        make_run(tmp_path / f"fed2-{seed}", seed, "fed2", reached=fed2)
    found = gather(find_runs([tmp_path])[0], ("to_target/0.3/rounds",)).compared
    (line,) = found.pair_lines().to_dict("records")
    assert (line["less fedavg"], line["95% interval"], line["better in"]) == ("+2", "-", "0 of 1 seeds")


def test_methods_that_each_came_there_alone_have_no_mean(tmp_path):
    for seed, (fedavg, fed2) in enumerate([(3, None), (None, 2), (3, 2)]):
        make_run(tmp_path / f"fedavg-{seed}", seed, "fedavg", reached=fedavg)
        make_run(tmp_path / f"fed2-{seed}", seed, "fed2", reached=fed2)
    found = gather(find_runs([tmp_path])[0], ("to_target/0.3/rounds",)).compared
    (line,) = found.pair_lines().to_dict("records")
    assert (line["less fedavg"], line["95% interval"]) == ("-", "-")
    assert any("no mean where each was there alone once" in note for note in found.notes)


def test_a_seed_that_diverged_is_compared_by_what_the_others_of_its_method_have(tmp_path):
    for seed in (0, 1, 2):
        make_run(tmp_path / f"a{seed}", seed)
        place = make_run(tmp_path / f"b{seed}", seed, algorithm="fedrep", finished=seed < 2)
        columns = (place / "metrics.csv").read_text().replace("global/acc", "personal/acc_mean")
        (place / "metrics.csv").write_text(columns)
        if seed < 2:
            final = json.loads((place / "summary.json").read_text()) | {"final": {"personal/acc_mean": 0.7}}
            (place / "summary.json").write_text(json.dumps(final))
    (place / "failure.txt").write_text(f"Client 3 failed in round 3: its update {DIVERGED}.\n")
    found = compared(tmp_path)
    assert found.heading.startswith("Methods compared by global/acc")
    assert any("personal/acc_mean of fedrep" in note for note in found.notes)
    (pair,) = found.pairs
    assert (pair.method, pair.interval.num_seeds) == ("fedrep", 3)
