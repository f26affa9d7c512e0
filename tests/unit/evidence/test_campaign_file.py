"""A campaign's file: its runs, their order, their words; what is wrong in it is said."""

import pytest
import yaml

from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.campaign_file import read_campaign

FILE = {
    "key": "k",
    "words": ["trainer=cpu"],
    "environment": {"OMP_NUM_THREADS": 1},
    "arms": {"a": ["algorithm=fedavg"], "b": ["algorithm=fedprox"], "c": ["algorithm=local"]},
    "studies": {
        "late": {
            "priority": 2, "words": ["data=digits"], "arms": ["a", "c"], "seeds": [0, 1],
            "settings": {"x": ["partition=iid"], "y": []}, "tuned": {"study": "tune", "alike": {"c": "b"}},
        },
        "tune": {
            "priority": 1, "arms": ["a", "b"], "seeds": [100], "keeps": ["clients.csv"],
            "then": {"a": ["program", "--out", "x"]},
            "grid": {"low": ["optimizer.lr=0.1"], "high": ["optimizer.lr=1"]},
        },
    },
}  # fmt: skip


def read(tmp_path, changed=None):
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(changed or FILE, sort_keys=False))
    return read_campaign(path)


def test_runs_come_by_priority_then_seed_by_seed(tmp_path):
    campaign = read(tmp_path)
    assert [cell.name for cell in campaign.cells()] == [
        *("tune/a/low/seed_100", "tune/b/low/seed_100", "tune/a/high/seed_100", "tune/b/high/seed_100"),
        *("late/x/a/seed_0", "late/x/c/seed_0", "late/y/a/seed_0", "late/y/c/seed_0"),
        *("late/x/a/seed_1", "late/x/c/seed_1", "late/y/a/seed_1", "late/y/c/seed_1"),
    ]
    assert campaign.environment == {"OMP_NUM_THREADS": "1"}
    assert campaign.studies["tune"].keeps == ("clients.csv",)
    assert campaign.studies["tune"].then == {"a": ("program", "--out", "x")}
    assert not campaign.studies["late"].keeps


def test_words_go_from_the_general_to_the_single_run(tmp_path):
    campaign = read(tmp_path)
    words = campaign.words_of(Cell("late", "x", "a", "", 1), ["optimizer.lr=0.1"])
    assert words == (
        "trainer=cpu",
        "data=digits",
        "partition=iid",
        "algorithm=fedavg",
        "optimizer.lr=0.1",
        "seed=1",
    )
    assert campaign.words_of(Cell("tune", "", "b", "high", 100))[-2:] == ("optimizer.lr=1", "seed=100")


def test_an_arm_is_tuned_by_its_own_runs_or_by_those_of_its_like(tmp_path):
    campaign = read(tmp_path)
    assert [c.name for c in campaign.tuning_of(Cell("late", "x", "c", "", 0))] == [
        "tune/b/low/seed_100",
        "tune/b/high/seed_100",
    ]
    assert campaign.tuning_of(Cell("tune", "", "a", "low", 100)) == []


def test_what_an_arm_has_of_its_own_is_tried_with_every_point_of_the_grid(tmp_path):
    own = {"a": {"less": ["x=1"], "more": ["x=2"]}, "b": {"mu_1": ["mu=1"], "mu_5": ["mu=5"]}}
    tune = FILE["studies"]["tune"] | {"own": own}
    campaign = read(tmp_path, FILE | {"studies": {"tune": tune}})
    assert [cell.name for cell in campaign.cells()][:5] == [
        *("tune/a/low/less/seed_100", "tune/b/low/mu_1/seed_100", "tune/a/low/more/seed_100"),
        *("tune/b/low/mu_5/seed_100", "tune/a/high/less/seed_100"),
    ]
    cell = Cell("tune", "", "b", "high/mu_5", 100)
    assert campaign.words_of(cell)[-3:] == ("optimizer.lr=1", "mu=5", "seed=100")
    assert campaign.studies["tune"].points("b")["low/mu_1"] == ("optimizer.lr=0.1", "mu=1")


def without(key):
    return {k: v for k, v in FILE.items() if k != key}


def study(**changes):
    return FILE | {"studies": FILE["studies"] | {"late": FILE["studies"]["late"] | changes}}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (without("studies"), "studies must hold keys"),
        (without("arms"), "arms must hold keys"),
        (FILE | {"arm": {}}, "did you mean arms"),
        (study(arms=["a", "d"]), "studies.late.arms must name arms of the file, but it is 'd'"),
        (study(arms=[]), "must be a list of arms"),
        (study(seeds=[True]), "studies.late.seeds"),
        (study(seeds=[-1]), "studies.late.seeds"),
        (study(seeds=[0, 1, 0]), "studies.late.seeds must name each seed once"),
        (study(words="data=digits"), "must be a list of overrides"),
        (study(words=["digits"]), "must be a list of overrides"),
        (study(tuned={"study": "tuen"}), "did you mean tune"),
        (study(tuned={"study": "tune"}), "studies.late.tuned.alike must lead from every arm"),
        (study(keeps="clients.csv"), "studies.late.keeps must be a list of words"),
        (study(then={"a": [1]}), "studies.late.then.a must be a list of words"),
        (study(then={"b": ["x"]}), "studies.late.then must name arms of the study, but it is 'b'"),
        (
            study(tuned={"study": "late"}),
            "studies.late.tuned.study must name a study that is not tuned itself",
        ),
        (study(sedes=[0]), "did you mean seeds"),
        (study(priority="high"), "studies.late.priority must be a number, but it is 'high'"),
        (study(priority=float("nan")), "studies.late.priority must be a number"),
        (study(grid={}), "studies.late.grid must be left out or name one, but it is {}"),
        (study(settings={}), "studies.late.settings must be left out or name one, but it is {}"),
        (study(own={"b": {"x": []}}), "studies.late.own must name arms of the study, but it is 'b'"),
        (
            study(own={"a": {"x": [], "y": []}}),
            "studies.late.own must try as many points for every arm of the study, but it is 'a 2, c 1'",
        ),
        ([1], "must hold keys with values"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, file, said):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, file)
    assert said in str(error.value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="readable YAML"):
        read_campaign(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="readable YAML"):
        read_campaign(tmp_path / "bad.yaml")
