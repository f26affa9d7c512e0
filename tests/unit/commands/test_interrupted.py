"""Ctrl-C: what the sentence names."""

import pytest

from fedfeat.train import _one_sentence


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("logs/runs/x", " with hydra.run.dir=logs/runs/x"),
        ("logs/lr=1,seed=0", """ with 'hydra.run.dir='"'"'logs/lr=1,seed=0'"'"''"""),
        (None, ""),
    ],
    ids=["run", "quoted", "sweep"],
)
def test_an_interrupted_run_names_the_directory_to_go_on_in(tmp_path, monkeypatch, capsys, place, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="130"), _one_sentence(place and tmp_path / place):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"Interrupted; the same command{named} goes on from here.\n"
