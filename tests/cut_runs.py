"""Runs of the command line that lose their end, and go on to it again."""

import json


def lose_end(run_dir, round_idx):
    """Take a finished run's summary and the checkpoint of its last round away."""
    (run_dir / "summary.json").unlink()
    for path in (run_dir / "checkpoints").glob(f"{round_idx:06}.*"):
        path.unlink()


def outcome(run_dir):
    """Weights and last metrics of a run, and the rows of its clients."""
    summary = json.loads((run_dir / "summary.json").read_text())
    final = {name: value for name, value in summary["final"].items() if not name.startswith("time/")}
    return summary["weights_sha256"], final, (run_dir / "clients.csv").read_text()


def assert_goes_on(cli, words, run_dir, caplog):
    """A run of four rounds makes the last one again, with what clients and server had kept, to the same end."""
    words = [*words, "federation.num_rounds=4"]
    assert cli(*words).code == 0
    expected = outcome(run_dir)
    lose_end(run_dir, 4)
    caplog.set_level("INFO", logger="fedfeat")
    again = cli(*words)
    assert again.code == 0, again.stderr
    assert "Resuming after round 3 of 4" in caplog.text
    assert outcome(run_dir) == expected
