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
        (study(arms=[]), "studies.late.arms must be a list of at least one arm, but it is []"),
        (study(arms=["a", "c", "a"]), "studies.late.arms must name each arm once"),
        (study(arms={}), "studies.late.arms must be a list of at least one arm, but it is {}"),
        (study(seeds=[True]), "studies.late.seeds"),
        (study(seeds=[-1]), "studies.late.seeds"),
        (study(seeds=[0, 1, 0]), "studies.late.seeds must name each seed once"),
        (study(words="data=digits"), "must be a list of overrides"),
        (study(words=["digits"]), "must be a list of overrides"),
        (
            study(words=["data=digits", "seed=3"]),
            "studies.late.words must leave seed to the campaign, but it is 'seed=3'",
        ),
        (
            study(words=["hydra.sweep.subdir=x"]),
            "studies.late.words must leave hydra.sweep.subdir to the campaign",
        ),
        (study(words=["hydra.run={dir: x}"]), "studies.late.words must leave hydra.run to the campaign"),
        (study(words=["+hydra.run.dir=x"]), "studies.late.words must leave hydra.run.dir to the campaign"),
        (study(words=["hydra.mode=MULTIRUN"]), "studies.late.words must leave hydra.mode to the campaign"),
        (study(words=["hydra/sweeper=basic"]), "studies.late.words must leave hydra/sweeper to the campaign"),
        (
            study(words=["+hydra.sweeper.params.seed=1,2"]),
            "studies.late.words must leave hydra.sweeper.params.seed to the campaign",
        ),
        (study(words=None), "studies.late.words must have a value or be left out, but it is None"),
        (study(tuned={"study": "tuen"}), "did you mean tune"),
        (
            study(tuned={"study": "tune", "alike": {"c": "b", "d": "a"}}),
            "studies.late.tuned.alike must name arms of the study, but it is 'd'",
        ),
        (study(tuned={"study": "tune"}), "studies.late.tuned.alike must lead from every arm"),
        (study(keeps="clients.csv"), "studies.late.keeps must be a list of words"),
        (
            study(keeps=["clients.csv", "../x"]),
            "studies.late.keeps must name files in the folder of a run, but it is '../x'",
        ),
        (study(keeps=["a/../../x"]), "studies.late.keeps must name files in the folder of a run"),
        (study(keeps=[""]), "studies.late.keeps must name files in the folder of a run, but it is ''"),
        (
            study(keeps=["config.yaml"]),
            "studies.late.keeps must leave out what is kept of every run, but it is 'config.yaml'",
        ),
        (study(keeps=["/x"]), "studies.late.keeps must name files in the folder of a run"),
        (study(then={"a": []}), "studies.late.then.a must name a program"),
        (study(then={"a": [1]}), "studies.late.then.a must be a list of words"),
        (study(then={"b": ["x"]}), "studies.late.then must name arms of the study, but it is 'b'"),
        (
            study(tuned={"study": "late"}),
            "studies.late.tuned.study must name a study that is not tuned itself",
        ),
        (study(sedes=[0]), "did you mean seeds"),
        (study(priority="high"), "studies.late.priority must be a number, but it is 'high'"),
        (study(priority=float("inf")), "studies.late.priority must be a number"),
        (study(priority=float("nan")), "studies.late.priority must be a number"),
        (study(grid={}), "studies.late.grid must be left out or name one, but it is {}"),
        (study(settings={}), "studies.late.settings must be left out or name one, but it is {}"),
        (study(own={"b": {"x": []}}), "studies.late.own must name arms of the study, but it is 'b'"),
        (
            study(own={"a": {"x": [], "y": []}}),
            "studies.late.own must try as many points for every arm of the study, but it is 'a 2, c 1'",
        ),
        ([1], "the file must hold keys with values"),
        (FILE | {"key": "../k"}, "key must be named by letters, digits and any of '_.+ -', but it is '../k'"),
        (FILE | {"key": ["k"]}, "key must be named by"),
        (FILE | {"into": 3}, "into must be a folder, but it is 3"),
        (FILE | {"into": ""}, "into must be a folder, but it is ''"),
        (
            FILE
            | {"studies": {"plain": {"arms": ["a"]}, "late": {"arms": ["a"], "tuned": {"study": "plain"}}}},
            "studies.late.tuned.study must name a study with a grid, but it is 'plain'",
        ),
        (FILE | {"arms": {"lr=0.1": []}}, "arms.lr=0.1 must be named by"),
        (FILE | {"studies": {"s/a": {}}}, "studies.s/a must be named by"),
        (study(settings={"..": []}), "studies.late.settings... must be named by"),
        (FILE | {"environment": {"A": True}}, "environment.A must be a text or a number, but it is True"),
        (FILE | {"environment": {"A": [1]}}, "environment.A must be a text or a number, but it is [1]"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, file, said):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, file)
    assert said in str(error.value)


def test_names_that_are_numbers_are_names(tmp_path):
    file = FILE | {"key": 7, "arms": {0.2: ["algorithm=fedavg"]}, "studies": {3: {"arms": [0.2]}}}
    campaign = read(tmp_path, file)
    assert campaign.key == "7"
    assert [cell.name for cell in campaign.cells()] == ["3/0.2/seed_0"]
    assert campaign.studies["3"].priority == 0


def test_what_is_kept_goes_to_a_folder_of_the_key_unless_the_file_says_another(tmp_path):
    assert read(tmp_path).into == "results/k"
    assert read(tmp_path, without("key")).into == "results/file"
    assert read(tmp_path, FILE | {"into": "elsewhere"}).into == "elsewhere"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arms:\n  a: []\n  a: []\n", "must name a once in one place, but line 3 names it again."),
        (
            "arms: {a: []}\nstudies:\n  s: {arms: [a], seeds: [0], seeds: [1]}\n",
            "must name seeds once in one place, but line 3",
        ),
        ("arms: {a: []}\nenvironment: [{x: 1, x: 2}]", "must name x once in one place, but line 2"),
        ("arms: {a: []}\nenvironment: {0.1: 1,\n0.10: 2}", "must name 0.10 once in one place, but line 3"),
        ("key: 2024-99-99", "must be a readable YAML file, but it is not: month must be in 1..12."),
        ("into: {{dir}}", "must be a readable YAML file, but it is not: "),
        ("a: [", "must be a readable YAML file, but it is not: "),
        ("a: 1\n b: 2", " in line 2."),
        ("a: \xff", "must be a readable YAML file, but it is not: "),
    ],
)
def test_a_key_that_stands_twice_and_a_file_that_is_no_yaml_are_refused(tmp_path, text, said):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as error:
        read_campaign(path)
    assert str(error.value).startswith(f"{path} must ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_merged_may_be_replaced(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(
        "arms: {a: []}\nstudies:\n  s: &s {arms: [a], seeds: [0]}\n  t: {<<: *s, seeds: [1]}\n"
        "  u: &u {<<: *s, seeds: [2]}\n  v: {<<: *u, seeds: [3]}\n  w: {<<: *s, <<: *u, seeds: [4]}\n"
    )
    assert [cell.seed for cell in read_campaign(path).cells()] == [0, 1, 2, 3, 4]


def test_what_names_itself_ends(tmp_path):
    (tmp_path / "file.yaml").write_text("arms: &a [*a]")
    with pytest.raises(ConfigError, match="arms must hold keys"):
        read_campaign(tmp_path / "file.yaml")


@pytest.mark.parametrize(
    ("name", "said"), [("none.yaml", "No such file or directory"), ("", "Is a directory")]
)
def test_a_file_that_is_none(tmp_path, name, said):
    with pytest.raises(ConfigError) as error:
        read_campaign(tmp_path / name)
    assert str(error.value).endswith(f"must be a readable YAML file, but it is not: {said}.")
