"""What a notebook asks of runs from Python: silence, the run opened at once, and clients looked at in every round."""

import logging
from pathlib import Path

import pytest
import torch

import fedfeat
from fedfeat.commands.client_models import client_modules, representations
from fedfeat.features.capture import eval_mode


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFEAT_ROOT", str(tmp_path))
    return tmp_path


def test_quiet_prints_nothing_and_changes_nothing_else(small, root, capsys, caplog):
    log = logging.getLogger("fedfeat")
    with caplog.at_level(logging.INFO):
        before = log.level
        quiet = fedfeat.run([*small, "logger=quiet", f"hydra.run.dir={root / 'quiet'}"])
        assert capsys.readouterr() == ("", "")
        assert caplog.records == []
        assert log.level == before
        # A run that speaks, after one that did not.
        loud = fedfeat.run([*small, f"hydra.run.dir={root / 'loud'}"])
        assert "round 3/3" in capsys.readouterr().out
        assert any("tensors" in record.message for record in caplog.records)
    assert quiet.summary["weights_sha256"] == loud.summary["weights_sha256"]
    # Whoever wants to see what a finished run says, may.
    assert fedfeat.run([*small, f"hydra.run.dir={root / 'quiet'}"]).summary == quiet.summary


def test_quiet_still_warns(small, root, caplog):
    with caplog.at_level(logging.INFO):
        fedfeat.run([*small, "logger=quiet", "federation.target_metric=nothing", "federation.num_rounds=1"])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_quiet_holds_on_the_command_line_and_beside_other_loggers(cli, small, root, capsys):
    outcome = cli(*small, "logger=[quiet,tensorboard]")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert list((root / "run" / "tensorboard").iterdir())


def test_an_outcome_opens_its_run(small, root):
    done = fedfeat.run([*small, "logger=quiet"])
    found = done.load()
    assert Path(found.run_dir) == done.run_dir
    assert found.summary == done.summary
    assert found.metrics["global/acc"].iloc[-1] == done.summary["final"]["global/acc"]


def test_representations_of_every_client_in_every_round_change_no_run(small, root):
    words = [*small, "algorithm=fedavg", "algorithm.client.personal=[head]"]
    plain = fedfeat.build([*words, f"hydra.run.dir={root / 'plain'}"])
    looked = fedfeat.build([*words, f"hydra.run.dir={root / 'looked'}"])
    images = looked.data.dataset.test.inputs[:20]
    ends = [progress for progress, _ in plain.rounds(plain.begin()[0])]
    for (progress, _), end in zip(looked.rounds(looked.begin()[0]), ends, strict=True):
        found = representations(looked, progress, images)
        assert [a.shape for a in found] == [(20, 8)] * 4
        for name, tensor in end.state.params.items():
            assert torch.equal(progress.state.params[name], tensor), name
    for client_id, module in client_modules(looked, progress):
        with eval_mode(module.model), torch.no_grad():
            expected = module.model.representation(module.plain(images))
        assert torch.equal(found[client_id], expected)
        personal = looked.store.get(client_id).personal
        assert torch.equal(
            module.model.state_dict()["head.fc2.linear.weight"], personal["head.fc2.linear.weight"]
        )
