"""The pages tell the truth: paths exist, code equals its file, examples run, command lines compose."""

import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml
from harness import parties

import fedfeat
from fedfeat import algorithms
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.commands.python import composed
from fedfeat.config.annotations import condition, parameters
from fedfeat.errors import ConfigError
from fedfeat.evidence.campaign_file import read_campaign
from fedfeat.evidence.verdicts import Verdicts

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/architecture.md",
    *(
        f"docs/{name}.md"
        for name in (
            "air-gapped",
            "campaigns",
            "compare",
            "data",
            "deviations",
            "editors",
            "features",
            "ray",
            "report",
            "security",
            "slurm",
            "tuning",
            "wandb",
        )
    ),
)
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]

# What starts like this and is not a placeholder (<name>, *) has to be in the repository.
PATH = re.compile(
    r"(?<![\w./$])((?:src|configs|docs|tests|scripts)/[\w./-]*\w|[A-Z]{5,}(?:\.md)?(?=`))(?![\w<*])"
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def namespace(function: str) -> dict:
    (code,) = (
        block for text in TEXTS.values() for block in blocks(text, "python") if f"def {function}(" in block
    )
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page):
    paths = {path for path in PATH.findall(TEXTS[page]) if not path.endswith(("tiny", "arrays"))}
    assert paths or page not in ("README.md", "docs/architecture.md"), "the pattern is wrong"
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_rooms_of_the_map_exist_and_none_is_missing():
    tree = TEXTS["docs/architecture.md"].split("```")[1]
    rooms = set(re.findall(r"^  (\w+/) ", tree, re.M))
    package = ROOT / "src" / "fedfeat"
    assert rooms == {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert {path.parent.name + "/" for path in package.glob("executors/*/__init__.py")} <= set(
        re.findall(r"\w+/", tree)
    )
    there = {path.stem for path in package.glob("*.py") if not path.name.startswith("__")}
    lines = tree.splitlines()
    assert there <= {word for line in lines[1:5] for word in re.findall(r"[a-z]+", line)}


def test_the_tests_have_the_rooms_of_the_package():
    units, package = ROOT / "tests" / "unit", ROOT / "src" / "fedfeat"
    folders = {path.parent.relative_to(units) for path in units.rglob("test_*.py")}
    assert all((package / folder).is_dir() for folder in folders)
    assert {path.parent.name for path in package.glob("*/__init__.py")} <= {str(path) for path in folders}


def test_the_example_method_is_fedavg_without_its_parts_and_momentum_with_them(tmp_path):
    names = namespace("broadcast")
    client, server = names["ProximalClient"], names["MomentumServer"]

    def last(name, mu, beta):
        halves = {"client": partial(client, mu=mu), "server": server(FedAvgServer(), beta=beta)}
        steps, _ = parties(tmp_path / name, num_rounds=3, local_epochs=3, **halves).run()
        return [step.state.average.params for step in steps]

    plain = [
        step.state.params for step in parties(tmp_path / "fedavg", num_rounds=3, local_epochs=3).run()[0]
    ]
    for found, expected in zip(last("without", 0.0, 0.0), plain, strict=True):
        torch.testing.assert_close(found, expected)
    ours = last("momentum", 0.0, 0.5)
    torch.testing.assert_close(ours[1], plain[1])
    assert not torch.allclose(*(next(iter(params[2].values())) for params in (ours, plain)))
    held, free = (last(name, mu, 0.0)[-1] for name, mu in (("held", 1.0), ("free", 0.0)))
    lengths = [sum(float(w.square().sum()) for w in params.values()) for params in (held, free)]
    assert lengths[0] < lengths[1]
    rules = {key: condition(declared) for key, declared in (*_types(client), *_types(server))}
    assert (rules["mu"].text, rules["beta"].text) == ("be in [0, inf)", "be in [0, 1)")


def _types(half):
    return parameters(half).types.items()


def test_the_example_data_set_loads(tmp_path):
    images, labels = np.arange(4 * 9, dtype=np.uint8).reshape(4, 1, 3, 3), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", train_x=images, train_y=labels, test_x=images[:2], test_y=labels[:2])
    dataset = namespace("arrays")["arrays"](str(tmp_path / "a.npz"))
    assert dataset.input_shape == (1, 3, 3)
    assert dataset.num_classes == 2
    assert dataset.train.labels.tolist() == [0, 1, 1, 0]
    assert dataset.mean == pytest.approx([17.5 / 255])


def test_the_files_of_the_example_method_make_it_run(tmp_path, monkeypatch):
    name = "fedfeat.algorithms.mine"
    module = ModuleType(name)
    (code,) = (block for block in blocks(TEXTS["README.md"], "python") if "class ProximalClient" in block)
    exec(compile(code, "README.md", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(algorithms, "mine", module, raising=False)
    (files,) = blocks(TEXTS["README.md"], "yaml")
    for path, content in yaml.safe_load(files).items():
        file = tmp_path / "conf" / "algorithm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    words = [
        f"hydra.searchpath=[file://{tmp_path}/conf]",
        "algorithm=mine",
        "algorithm.client.mu=0.5",
        "logger=quiet",
    ]
    run = fedfeat.run([*words, "federation.num_rounds=1", "trainer=cpu", f"hydra.run.dir={tmp_path}/run"])
    assert run.summary["algorithm"] == "mine"
    with pytest.raises(ConfigError, match=r"^algorithm\.server\.beta must be"):
        fedfeat.run([*words, "algorithm.server.beta=2"])


def test_the_campaign_of_the_page_is_one_and_its_runs_compose(tmp_path):
    (block,) = blocks(TEXTS["docs/campaigns.md"], "yaml")
    (tmp_path / "mine.yaml").write_text(block)
    campaign = read_campaign(tmp_path / "mine.yaml")
    assert len(campaign.cells()) == 4 + 18
    for cell in campaign.cells():
        cfg = composed(campaign.words_of(cell))
        assert cfg.algorithm.name == cell.arm
    parts = {
        name for name in re.findall(r"`(\w+)[^`]*`", TEXTS["docs/campaigns.md"].split("| part | what |")[1])
    }
    assert Verdicts(None, None, None).makers().keys() <= parts


def test_the_pages_keep_their_length():
    longest = {"README.md": 250, "docs/architecture.md": 150} | dict.fromkeys(PAGES[2:], 130)
    longest |= {"docs/data.md": 150, "docs/deviations.md": 160}  # a line for each option, for each difference
    longest["docs/compare.md"] = 245  # three tables of nine frameworks, and a file for every cell
    assert {
        page: len(text.splitlines()) for page, text in TEXTS.items() if len(text.splitlines()) > longest[page]
    } == {}
