"""The pages of results are what the stored runs say, and the stored runs are what today's code composes."""

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from fedfeat.commands.python import composed
from fedfeat.config.rules import check
from fedfeat.errors import ConfigError
from fedfeat.evidence.archive import Archive
from fedfeat.evidence.campaign_file import read_campaign
from fedfeat.evidence.claims_file import read_claims
from fedfeat.evidence.queue import Queue
from fedfeat.evidence.results_command import made, main
from fedfeat.evidence.stored import THEN, check_words, made_with
from fedfeat.runs.directory import fingerprint_of
from fedfeat.runs.repetition import altered

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
CAMPAIGN, BOARD = (read_campaign(RESULTS / f"{name}.yaml") for name in ("evidence", "board"))
ARCHIVES = [Archive(campaign, RESULTS / "runs") for campaign in (CAMPAIGN, BOARD)]
PLACES = {cell: place for archive in ARCHIVES for cell, place in archive.places.items()}
FILES = [path for path in (RESULTS / "runs").rglob("*") if path.is_file()]
# Of runs that differ by seed or point alone, one is composed.
ARMS = {(cell.study, cell.setting, cell.arm): cell for cell in PLACES}


def test_pages_and_figures_are_made_from_the_runs_byte_for_byte(tmp_path):
    for page, text in made(ROOT, tmp_path).items():
        assert text == (ROOT / page).read_text(), f"{page}: make results"
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_bytes() for path in (ROOT / "docs" / "figures").iterdir()}


def test_a_typed_number_is_found(tmp_path, capsys):
    for name in ("docs", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "methods").symlink_to(ROOT / "docs" / "methods")
    for page in ("claims.md", "results.md", "leaderboard.md", "performance.md"):
        text = (ROOT / "docs" / page).read_text()
        (tmp_path / "docs" / page).write_text(text.replace("Verdict: **undecided**", "Verdict: **holds**", 1))
    with pytest.raises(SystemExit) as stop:
        main(["--root", str(tmp_path), "--check"])
    assert stop.value.code == 1
    assert "docs/claims.md would change" in capsys.readouterr().out


def test_a_checkout_without_a_page_is_told_in_one_sentence(tmp_path, capsys):
    (tmp_path / "results").symlink_to(ROOT / "results")
    with pytest.raises(SystemExit) as stop:
        main(["--root", str(tmp_path)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path / 'docs' / 'claims.md'} must be usable")
    assert said.count("\n") == 1


def test_every_stored_run_is_one_of_the_campaign_and_is_small():
    assert not CAMPAIGN.studies.keys() & BOARD.studies.keys()
    known = {RESULTS / "runs" / cell.name for campaign in (CAMPAIGN, BOARD) for cell in campaign.cells()}
    folders = {path.parent.parent if path.parent.name == THEN else path.parent for path in FILES}
    assert folders <= known
    assert sum(path.stat().st_size for path in FILES) < 40e6
    for archive in ARCHIVES:
        for cell in archive.places:
            summary = archive.run(cell).summary
            for commit in summary.get("git_commits", [summary["git_commit"]]):
                assert re.fullmatch(r"[0-9a-f]{40}", commit), (cell, commit)


def test_stored_runs_have_the_overrides_that_the_campaigns_ask_for(tmp_path):
    """Those of the tuned learning rates among them."""
    checked = 0
    for campaign in (CAMPAIGN, BOARD):
        queue = Queue(campaign, tmp_path, RESULTS / "runs")
        for cell, place in queue.places(campaign.cells()).items():
            words = queue.words(cell)
            assert words is not None, cell
            check_words(place, words)
            checked += 1
    assert checked >= len(PLACES)


def test_a_stored_run_of_another_length_would_be_found(tmp_path):
    cell = next(cell for cell in PLACES if cell.study == "readings")
    words = Queue(CAMPAIGN, tmp_path, RESULTS / "runs").words(cell)
    with pytest.raises(ConfigError, match=r"federation\.num_rounds=60"):
        check_words(PLACES[cell], (*words, "federation.num_rounds=60"))


def test_no_stored_file_names_a_folder_of_a_machine():
    # Versions, targets and classes have no slash; keys of metrics have one, and do not begin with it.
    for path in FILES:
        assert not re.search(r"(?<![\w.}])/\w+/\w+", path.read_text()), path


def test_arms_are_compared_on_the_same_examples_and_split():
    """As far as runs have the digests of their data, which are kept since there is such a file."""
    digests: dict[tuple[str, str, int], set[tuple[str, ...]]] = {}
    for cell, place in PLACES.items():
        if found := fingerprint_of(place):
            digests.setdefault((cell.study, cell.setting, cell.seed), set()).add(found)
    assert digests
    assert {key: found for key, found in digests.items() if len(found) > 1} == {}


@pytest.mark.parametrize("cell", ARMS.values(), ids=lambda cell: cell.name)
def test_a_stored_configuration_composes_today(cell):
    place = PLACES[cell]
    today = OmegaConf.to_container(composed(made_with(place)), resolve=True)
    stored = yaml.safe_load((place / "config.yaml").read_text())
    # Keys that were added since then are today's alone; the commit that made the run stands in its summary.
    assert altered(stored, today) == {}
    # Published numbers fix nothing of a run, but the pages take them from what is kept.
    assert stored.get("published") == (today.get("published") or None)


def test_claims_name_studies_settings_arms_and_quantities_of_the_campaign():
    _, claims = read_claims(RESULTS / "claims.yaml", CAMPAIGN.studies)
    for claim in claims:
        runs = {
            cell[:3]
            for cell in ARCHIVES[0].places
            if cell.study in claim.studies and cell.arm in claim.rule.arms
        }
        for study, setting, arm in runs:
            for quantity in {claim.quantity, getattr(claim.rule, "target", claim.quantity)}:
                assert ARCHIVES[0].values([study], setting, arm, quantity), (claim.id, study)


def test_every_stored_run_of_a_method_is_told_of_on_a_page_of_methods():
    texts = [path.read_text() for path in (ROOT / "docs" / "methods").glob("*.md")]
    lists = [names for text in texts for names in re.findall(r"made: method algorithms=(\S+)", text)]
    decisive = [cell for cell in ARCHIVES[0].places if len(CAMPAIGN.studies[cell.study].grid) < 2]
    made = {ARCHIVES[0].run(cell).setting["algorithm.name"] for cell in decisive}
    assert made
    assert made <= {name for names in lists for name in names.split(",")}


PLANNED = {
    (cell.study, cell.setting, cell.arm): (campaign, cell)
    for campaign in (CAMPAIGN, BOARD)
    for cell in campaign.cells()
    if (cell.study, cell.setting, cell.arm) not in ARMS
}


NOTHING = pytest.param(None, None, marks=pytest.mark.skip("every run is there"))


@pytest.mark.parametrize(
    ("campaign", "cell"), [*PLANNED.values()] or [NOTHING], ids=lambda value: getattr(value, "name", "")
)
def test_a_run_that_is_to_come_composes(campaign, cell):
    tuning = campaign.tuning_of(cell)
    point = campaign.studies[tuning[0].study].points(tuning[0].arm)[tuning[0].point] if tuning else ()
    config = OmegaConf.to_container(composed(campaign.words_of(cell, point)), resolve=True)
    config.pop("hydra")
    check(config)


def test_the_page_of_a_method_tells_the_claims_about_the_chosen_reading():
    assert "claims.md#t1-fed2" in (ROOT / "docs" / "methods" / "fed2.md").read_text()
