"""A run that is kept gives its numbers again today; where it does not, that is said."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "runs" / "digits" / "digits_fed2" / "seed_0"


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(KEPT, tmp_path / "kept")


def repeat(tmp_path, *words):
    command = [sys.executable, "-m", "fedfeat.commands.repeat", *map(str, words)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_kept_run_gives_its_numbers_again_and_goes_on(copy, tmp_path):
    code, said, _ = repeat(tmp_path, copy, "--rounds", "1")
    assert code == 0
    assert "of 30, all quantities are the same to six digits." in said
    place = tmp_path / "logs" / "repeated" / "kept"
    assert f"{copy}\nlogs/repeated/kept\n" in said
    assert not (place / "summary.json").exists()
    altered = (copy / "metrics.csv").read_text().replace(",2.1389425604456314,", ",2.2389425604456314,")
    (copy / "metrics.csv").write_text(altered)
    code, said, _ = repeat(tmp_path, copy, "--rounds", "3")
    assert code == 0
    assert "round 1/30" not in said, "it goes on"
    assert "14 of 15 quantities are the same to six digits; the others:" in said
    line = next(line for line in said.splitlines() if line.startswith("global/loss"))
    assert line.split()[-2:] == ["0.1", "1"]
    # The repetition is a run directory: it can be repeated, too.
    code, said, _ = repeat(tmp_path, place, "--rounds", "1", "--out", "twice")
    assert code == 0
    assert "all quantities are the same" in said
    assert (tmp_path / "twice" / "logs" / "repeated" / "kept" / "metrics.csv").exists()


def test_a_configuration_that_is_another_today_is_refused(copy, tmp_path):
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["federation"]["local_epochs"] = 77
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    code, _, said = repeat(tmp_path, copy)
    assert code == 2
    assert said.startswith(f"fedfeat-repeat: federation.local_epochs must be 77, as in {copy}, but it is ")
    assert said.endswith("; commit 27f26647f1294b98ca75e6dad626ea3e1090ec18 made the run.\n")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("word", ["seed=3", "+optimizer.new=1", "serial"])
def test_words_that_change_numbers_are_refused(copy, tmp_path, word):
    code, _, said = repeat(tmp_path, "--with", "executor=serial", "--with", word, copy)
    rule = "--with must be an override that changes no number, such as executor=ray"
    assert (code, said) == (2, f"fedfeat-repeat: {rule}, but it is '{word}'.\n")


def test_without_a_round_there_is_nothing_to_compare(copy, tmp_path):
    path = copy / "metrics.csv"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    code, _, said = repeat(tmp_path, copy)
    assert (code, said) == (2, f"fedfeat-repeat: DIR must have a round to compare, but {path} has none.\n")


@pytest.mark.parametrize("word", ["+loss._target_=os.system", "+algorithm.client.hook={_target_: os.system}"])
def test_what_nobody_has_declared_is_not_made(copy, tmp_path, word):
    words = yaml.safe_load((copy / "overrides.yaml").read_text())
    (copy / "overrides.yaml").write_text(yaml.safe_dump([*words, word]))
    code, _, said = repeat(tmp_path, copy)
    assert code == 2
    assert "os.system" in said
    assert "--trust" in said


@pytest.mark.parametrize(
    "word",
    [
        "executor._target_=os.system",
        "executor={memory_mb:{_target_:shutil.copyfile,src:/etc/hostname,dst:/tmp/written}}",
        "+executor={memory_mb:{_target_:os.system}}",
        "executor=${oc.env:HOME}",
        "+logger.mine._target_=os.system",
        "+hydra.callbacks.mine._target_=os.system",
    ],
)
def test_what_is_not_made_of_a_stored_run_is_left_out(copy, word):
    from fedfeat.commands.repeat import repeated_words

    words = yaml.safe_load((copy / "overrides.yaml").read_text())
    (copy / "overrides.yaml").write_text(yaml.safe_dump([*words, word]))
    assert repeated_words(copy) == words


@pytest.mark.parametrize("missing", ["metrics.csv", "config.yaml"])
def test_a_folder_without_a_run_is_refused(copy, tmp_path, missing):
    (copy / missing).unlink()
    code, _, said = repeat(tmp_path, copy)
    rule = "DIR must be a run directory, or what a campaign has kept of one"
    assert (code, said) == (2, f"fedfeat-repeat: {rule}, but {copy} has no {missing}.\n")


@pytest.mark.parametrize("text", [None, "{", "seed: 0", "[seed=0, {a: b}]"])
def test_without_its_overrides_a_run_cannot_be_repeated(copy, tmp_path, text):
    (copy / "overrides.yaml").unlink()
    if text is not None:
        (copy / "overrides.yaml").write_text(text)
    code, _, said = repeat(tmp_path, copy)
    rule = "must hold overrides.yaml with a list of words"
    assert (code, said) == (2, f"fedfeat-repeat: {copy} {rule}, but it does not.\n")
