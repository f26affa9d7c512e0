from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import SIZES, make_data, network_of, parties
from torch import nn

from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import IndexTestParts, Parts
from fedfeat.errors import ClientError
from fedfeat.features.diagnostics import AlignmentProbe
from fedfeat.rounds.loop import first_progress
from fedfeat.rounds.plan import Plan


def plan(**arguments):
    common = {
        "seed": 0,
        "num_rounds": 10,
        "num_clients": 3,
        "cohort_size": 3,
        "local_epochs": 1,
        "local_steps": None,
        "batch_size": None,
    }
    return Plan(**(common | {"eval_every": 4, "lr_factor": lambda *_: 1.0} | arguments))


@pytest.mark.parametrize(
    ("epochs", "steps", "expected"),
    [(1, None, 5), (0.5, None, 2), (0.05, None, 1), (0.75, None, 4), (2.5, None, 12), (None, 7, 7)],
)
def test_local_work_in_steps(epochs, steps, expected):
    assert plan(local_epochs=epochs, local_steps=steps, batch_size=2).full_steps(9) == expected


def test_only_stragglers_that_there_are_drop_out():
    """A method that needs everyone's answer is not refused for a key that has no effect."""
    data = SimpleNamespace(augmented=False, sources=(), permuted=False)
    found = [
        plan(drop_stragglers=drop, straggler_fraction=share).setting("x", False, data).drops_stragglers
        for drop, share in ((True, 0.0), (True, 0.5), (False, 0.5))
    ]
    assert found == [False, True, False]


def test_only_evaluated_rounds_are_probed_and_the_last_always_is():
    """Every second of ten rounds would be measured; evaluated are 4, 8 and 10."""
    probed = plan(probe=AlignmentProbe(every=2))
    assert [t for t in range(1, 11) if probed.probes(t)] == [4, 8, 10]
    assert [t for t in range(1, 11) if plan(probe=AlignmentProbe(every=8)).probes(t)] == [8, 10]
    assert not any(map(plan().probes, range(1, 11)))


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 8])
@pytest.mark.parametrize("normed", [False, True])
def test_the_plan_knows_the_batches_that_a_worker_makes(batch_size, normed, tmp_path):
    """Of 3, 5 and 8 examples; batch norm drops a last batch of one."""

    def model():
        return network_of(*([nn.BatchNorm1d(4)] if normed else []), nn.Linear(4, 3))

    federation = parties(tmp_path, batch_size=batch_size, build_model=model)
    worker = federation.executor.worker
    assert federation.plan.drop_singleton == normed
    for k, size in enumerate(SIZES):
        assert federation.plan.steps_per_epoch(size) == worker.steps_per_epoch(k)


@pytest.mark.parametrize(("round_idx", "factor"), [(0, 1.0), (9, 10.0), (10, 10.0), (12, 10.0)])
def test_a_task_has_the_rate_of_its_round(round_idx, factor):
    full = plan(lr_factor=lambda round_idx, _: 1.0 + round_idx)
    assert full.task(round_idx, 1, 15, "payload", None) == Task(1, round_idx, "payload", None, 15, factor)


def test_the_full_work_of_a_client():
    """9 examples in batches of 2 are 5 steps, and without the single one at the end 4."""
    full = plan(local_epochs=3, batch_size=2)
    assert full.full_steps(9) == 15
    assert replace(full, drop_singleton=True).full_steps(9) == 12
    # Two processes: a batch of 3 would leave one of them a single example.
    assert replace(full, batch_size=4, drop_singleton=True, world_size=2).full_steps(11) == 6


def test_every_few_rounds_and_the_last_are_evaluated():
    assert [r for r in range(11) if plan().evaluates(r)] == [0, 4, 8, 10]


def test_a_run_yields_the_initial_model_and_every_round(tmp_path):
    _, records = parties(tmp_path, num_rounds=3, eval_every=2).run()
    assert [(record.round_idx, record.evaluated, record.cohort) for record in records] == [
        (0, True, ()),
        (1, False, (0, 1, 2)),
        (2, True, (0, 1, 2)),
        (3, True, (0, 1, 2)),
    ]
    assert "global/acc" not in records[1].metrics
    assert records[1].clients == ()
    assert [row.num_examples for row in records[2].clients] == list(SIZES)
    # Equal logits before training: loss ln 3, and class 0 everywhere.
    assert records[0].metrics["global/loss"] == pytest.approx(np.log(3))


def test_counters_add_up(tmp_path):
    _, records = parties(tmp_path, local_epochs=2).run()
    assert [record.metrics["compute/examples"] for record in records] == [0, 32, 64]
    # 4 inputs and 3 classes: 2 * 4 * 3 forward, the same backward to the weights.
    assert records[-1].metrics["compute/flops"] == 64 * 48
    assert records[-1].metrics["comm/total_bytes"] == 2 * 2 * 3 * 15 * 4


def test_the_train_loss_of_a_round_weighs_clients_by_what_they_saw(tmp_path):
    """One full-batch step from zero weights: every client's loss is ln 3 in round 1."""
    _, records = parties(tmp_path).run()
    assert records[1].metrics["train/loss"] == pytest.approx(np.log(3))
    rows = {row.client_id: row.train_loss for row in records[2].clients}
    expected = sum(n * rows[k] for k, n in enumerate(SIZES)) / sum(SIZES)
    assert records[2].metrics["train/loss"] == pytest.approx(expected)


def test_who_has_trained_on_nothing_has_no_train_loss(tmp_path):
    _, records = parties(tmp_path, data=make_data((0, 5, 8))).run()
    rows = {row.client_id: row.train_loss for row in records[1].clients}
    assert rows[0] is None
    assert [rows[k] for k in (1, 2)] == pytest.approx([np.log(3)] * 2)


def test_the_learning_rate_follows_the_rounds(tmp_path):
    rates = []

    class Recording(ClientModule):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            rates.append(optimizer.param_groups[0]["lr"])
            return optimizer

    parties(tmp_path, client=Recording, lr=0.5, lr_factor=lambda r, n: (n - r) / n).run()
    assert rates == [0.5] * 3 + [0.25] * 3


def own_head(**arguments):
    return ClientModule(personal=["head"], **arguments)


def test_personal_models_are_evaluated_for_everyone_even_outside_the_cohort(tmp_path):
    _, records = parties(tmp_path, client=own_head, cohort_size=1, num_rounds=1).run()
    rows = records[-1].clients
    assert [row.client_id for row in rows] == [0, 1, 2]
    assert all(row.personal_acc is not None for row in rows)
    assert sum(row.train_loss is not None for row in rows) == 1
    assert "global/acc" not in records[-1].metrics


def test_an_own_model_without_test_examples_is_in_no_mean(tmp_path):
    data = make_data()
    parts = IndexTestParts(Parts(np.arange(6), np.array([0, 2, 2, 6])))
    data = FederatedData(data.dataset, data.split._replace(test=parts), transforms.none())
    _, records = parties(tmp_path, data=data, client=own_head, cohort_size=1, num_rounds=2).run()
    # Of the initial models, which all are one, then of those of who has trained and who has not.
    for record in records:
        assert [row.personal_acc is None for row in record.clients] == [False, True, False]
        own = {name: value for name, value in record.metrics.items() if name.startswith("personal/")}
        assert "personal/acc_mean" in own
        assert all(map(np.isfinite, own.values())), own


def test_a_failed_client_stops_the_run_or_is_left_out(tmp_path):
    class Failing(ClientModule):
        def loss(self, batch):
            if len(batch[1]) == 5:
                raise RuntimeError("no luck")
            return super().loss(batch)

    with pytest.raises(ClientError, match="Client 1 failed in round 1"):
        parties(tmp_path / "a", client=Failing).run()
    _, records = parties(tmp_path / "b", client=Failing, skip_failed=True).run()
    assert records[1].metrics["clients/failed"] == 1
    assert records[1].metrics["compute/examples"] == 3 + 8


def test_a_finished_run_does_nothing(tmp_path):
    federation = parties(tmp_path)
    last = federation.run()[0][-1]
    assert federation.run(last) == ([], [])


def test_progress_starts_at_nothing():
    progress = first_progress(torch.zeros(1))
    assert progress.round_idx == 0
    assert set(progress.counters.values()) == {0.0}
