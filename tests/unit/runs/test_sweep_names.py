"""Names of runs in a sweep: valid, short enough, each run's own, and beginning with what was swept."""

import itertools

import pytest

from fedfeat.runs.sweep_names import directory_name, run_name

LONG = f"model.hidden=[{','.join(['8'] * 150)}]"


@pytest.mark.parametrize(
    ("overrides", "swept", "expected"),
    [
        ("", "", "defaults"),
        ("logger=wandb logger.wandb.project=mine group=g trace=true data.root=/d paths.logs=/l", "", "defaults"),
        ("b=1 a=2", "", "a=2,b=1"),
        ("algorithm=fed2 seed=0 structure.groups=10", "seed structure.groups",
         "structure.groups=10,seed=0,algorithm=fed2"),
        ("executor=ray seed=0", "executor", "executor=ray,seed=0"),
        ("+optimizer.eps=1 ~optimizer.lr", "optimizer.eps", "optimizer.eps=1,~optimizer.lr"),
        ("algorithm/client=x experiment=fed2/t1_vgg9 sweep=seeds", "algorithm/client", "algorithm.client=x"),
        ("experiment=fed2/t1_vgg9 seed=0", "experiment", "experiment=fed2%2Ft1_vgg9,seed=0"),
        ("experiment=fed2%2Ft1_vgg9", "experiment", "experiment=fed2%252Ft1_vgg9"),
    ],
)  # fmt: skip
def test_names(overrides, swept, expected):
    assert run_name(overrides.split(), swept.split()) == expected


@pytest.mark.parametrize("swept", ["seed", "seed,optimizer.lr", f"seed,{LONG.split('=')[0]}"])
def test_a_long_name_keeps_what_was_swept_and_a_digest(swept):
    swept = swept.split(",")
    runs = [
        [LONG, f"optimizer.lr={rate}", f"seed={seed}"]
        for rate, seed in itertools.product((0.1, 0.2), range(3))
    ]
    found = [run_name(run, swept) for run in runs]
    assert len(set(found)) == len(runs)
    assert all(len(name.encode()) <= 255 for name in found)
    assert found == [run_name(run, swept) for run in runs]
    if LONG.split("=")[0] not in swept:
        assert found[0].startswith("optimizer.lr=0.1,seed=0," if len(swept) > 1 else "seed=0,")


def test_many_swept_keys_are_never_cut_for_the_sake_of_constants():
    swept = [f"data.loader.some_long_key_{i}=123456789" for i in range(5)]
    (name, other) = (
        run_name([*swept, f"seed={seed}", LONG], [s.split("=")[0] for s in swept]) for seed in (0, 1)
    )
    assert name.startswith(",".join(swept) + "...")
    assert name != other
    assert len(name.encode()) <= 255


def test_letters_of_several_bytes_are_not_cut_in_two():
    name = run_name(["name.x=" + "ä" * 200, "model.x=" + "ä" * 200], [])
    assert len(name.encode()) <= 255
    assert name.startswith("model.x=ää")


@pytest.mark.parametrize("constant", ["optimizer.lr=0.1", LONG])
def test_a_run_keeps_its_directory_when_more_is_swept(tmp_path, constant):
    run = [constant, "partition=iid", "seed=0"]
    first = directory_name(str(tmp_path), run, ["seed"])
    (tmp_path / first).mkdir()
    assert run_name(run, ["seed", "partition"]) != first
    assert directory_name(str(tmp_path), run, ["seed", "partition"]) == first
    assert directory_name(str(tmp_path), [*run[:2], "seed=1"], ["seed", "partition"]) != first


def test_of_two_directories_of_one_run_its_own_name_is_taken(tmp_path):
    run = ["optimizer.lr=0.1", "partition=iid", "seed=0"]
    swept = (["seed"], ["seed", "partition"], ["seed", "optimizer.lr"])
    for keys in swept:
        (tmp_path / run_name(run, keys)).mkdir()
    assert [directory_name(str(tmp_path), run, keys) for keys in swept] == [run_name(run, k) for k in swept]


def test_lists_in_another_order_are_other_runs(tmp_path):
    first = directory_name(str(tmp_path), ["model.hidden=[8,4,2,1]", "seed=0"], ["seed"])
    (tmp_path / first).mkdir()
    other = directory_name(str(tmp_path), ["model.hidden=[8,2,4,1]", "seed=0"], ["seed"])
    assert other != first
