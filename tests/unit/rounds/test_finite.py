"""Rounds whose numbers are not finite."""

import logging
import math

from fedfeat.rounds.finite import FiniteWatch, not_finite
from fedfeat.runs.records import ClientRow, RoundRecord


def record(round_idx, loss, *rows):
    return RoundRecord(round_idx, (), {"global/loss": loss, "global/acc": 0.5}, True, rows)


def test_it_is_said_once_and_written_as_nan(caplog):
    caplog.set_level(logging.WARNING)
    watch = FiniteWatch()
    assert watch.noted(record(1, 2.0)).metrics == {"global/loss": 2.0, "global/acc": 0.5}
    assert not caplog.messages
    for round_idx, loss in ((2, math.nan), (3, math.inf), (4, -math.inf)):
        found = watch.noted(record(round_idx, loss)).metrics
        assert math.isnan(found["global/loss"])
        assert found["global/acc"] == 0.5
    (message,) = caplog.messages
    assert message.startswith("Round 2: global/loss is not finite, so training has diverged.")
    assert "optimizer.lr" in message


def test_clients_are_counted_by_column():
    rows = [ClientRow(k, 5, global_loss=loss, local_loss=math.nan) for k, loss in enumerate([1.0, math.nan])]
    assert not_finite(record(1, 1.0, *rows)) == ["global_loss of 1 client(s)", "local_loss of 2 client(s)"]


def test_a_trimmed_networks_infinite_loss_is_no_divergence():
    assert not_finite(record(1, 1.0, ClientRow(0, 5, local_loss=math.inf))) == []
