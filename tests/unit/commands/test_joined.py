"""Runs that new clients have joined, put together by seed."""

from report_runs import make_run

from fedfeat.commands.joined import arms_of


def test_seeds_of_an_arm_are_together_whatever_else_is_called_after_them(tmp_path):
    runs = [
        make_run(tmp_path / f"{method}-{seed}", seed, method, data={"loader": {"seed": seed}})
        for method in ("fedavg", "fednova")
        for seed in (1, 0)
    ]
    assert arms_of(runs, [*"abcd"]) == {"fedavg": ["b", "a"], "fednova": ["d", "c"]}


def test_runs_that_differ_in_nothing_stay_apart(tmp_path):
    runs = [make_run(tmp_path / name, 0) for name in "xy"]
    assert [*arms_of(runs, [*"ab"]).values()] == [["a"], ["b"]]
