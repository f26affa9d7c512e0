"""The Trainer of local fits: which of Lightning's arguments it takes, and callbacks that know one client alone."""

import inspect
from dataclasses import fields
from functools import partial
from typing import ClassVar

import pytest
import pytorch_lightning as pl
import torch
from harness import linear, make_data
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelSummary,
    Timer,
    TQDMProgressBar,
)
from pytorch_lightning.plugins import MixedPrecision

from fedfeat.client import ClientModule, Weights
from fedfeat.clients.callbacks import WeightAveraging
from fedfeat.clients.local_trainer import LocalTrainer, first_scaler
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.tasks import Task
from fedfeat.clients.worker import Worker, WorkerSettings
from fedfeat.config.rule_table import RULES

# Ours, which are none of Lightning's.
OWN = {"num_threads", "channels_last", "compile"}


class Steps(pl.Callback):
    """Counts optimizer steps and notes the mean loss of every epoch."""

    seen: ClassVar[list[list[float]]] = []

    def on_train_start(self, trainer, pl_module):
        self.losses = []
        Steps.seen.append(self.losses)

    def on_train_epoch_end(self, trainer, pl_module):
        self.losses.append(float(trainer.callback_metrics["train/loss"]))


def worker(*callbacks, **trainer):
    """Two clients of 40 examples, ten batches an epoch."""
    Steps.seen.clear()
    local = LocalTrainer(accelerator="cpu", callbacks=callbacks, **trainer)
    client = partial(ClientModule, optimizer=partial(torch.optim.SGD, lr=0.5))
    return Worker(make_data((40, 40)), OneNetwork(linear), client, local, WorkerSettings(0, 4, 100, False))


def fit(worker, client_id, num_steps=60, lr_factor=1.0):
    """A turn of a client from zero weights."""
    tensors = worker.module.model.state_dict()
    payload = Weights({name: torch.zeros_like(tensors[name]) for name in worker.module.shared_keys})
    return worker.fit(Task(client_id, 0, payload, None, num_steps, lr_factor))


def same(one, other):
    return all(torch.equal(one.payload.params[name], tensor) for name, tensor in other.payload.params.items())


def test_the_loss_scale_of_a_fit_is_not_that_of_the_fit_before():
    """A scale that has grown, or fallen after an overflow, would have a client's numbers follow from who was before."""

    def one():
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        return worker(plugins=MixedPrecision("16-mixed", "cpu", scaler), precision=None)

    both, alone = one(), one()
    scale = both.lightning.precision_plugin
    fit(both, 0)
    assert scale.scaler.get_scale() > 1000
    fit(both, 1, num_steps=2)
    assert scale.scaler.get_scale() == 16.0
    assert same(fit(both, 1), fit(alone, 1))


def test_fits_begin_with_a_scale_that_first_gradients_bear():
    own = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=7.0))
    assert first_scaler(MixedPrecision("16-mixed", "cpu"), "16-mixed").get_scale() == 4096
    assert first_scaler(own, None).get_scale() == 7
    assert first_scaler(MixedPrecision("bf16-mixed", "cpu"), "bf16-mixed") is None


def test_every_argument_of_lightnings_trainer_is_taken_or_refused():
    lightning = set(inspect.signature(pl.Trainer).parameters)
    ours = {field.name for field in fields(LocalTrainer)} - OWN
    refused = {
        rule.key.removeprefix("trainer.")
        for rule in RULES
        if rule.key.startswith("trainer.") and rule.test.text.startswith("be left to")
    }
    assert ours | refused == lightning
    assert ours & refused == {"callbacks"}  # from their own group


@pytest.mark.parametrize(("algorithm", "at_bound"), [("value", True), ("norm", False)])
def test_gradients_are_clipped_as_asked(algorithm, at_bound):
    """A step from zero weights: gradients are zero or beyond .001, so by value all moves are of one size."""
    clipped = worker(gradient_clip_val=0.001, gradient_clip_algorithm=algorithm)
    moved = torch.cat([tensor.flatten() for tensor in fit(clipped, 0, 1).payload.params.values()]).abs()
    assert (
        torch.isclose(moved, torch.tensor(0.5 * 0.001), rtol=1e-5).sum() > 10
    ) == at_bound  # of 15, some are 0
    assert torch.isclose(moved.norm(), torch.tensor(0.5 * 0.001), rtol=1e-3) != at_bound


@pytest.mark.filterwarnings("ignore:.*precision")
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        # All names of Lightning; a CPU has no float16 of its own, so that it takes bfloat16.
        *((name, torch.bfloat16) for name in ("bf16-mixed", "bf16", "16-mixed", "16", 16)),
    ],
)
def test_fits_and_evaluation_compute_in_the_precision_that_is_asked_for(precision, dtype):
    seen = []
    made = worker(precision=precision)
    made.module.model.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    fit(made, 0, 1)
    assert (torch.bfloat16 in seen) == (dtype == torch.bfloat16)  # FLOPs are counted in float32
    with LocalTrainer(accelerator="cpu", precision=precision).autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_arguments_arrive_where_they_are_given_and_only_there():
    plain = LocalTrainer(accelerator="cpu")
    assert plain.further == {}
    assert plain.build().accumulate_grad_batches == 1
    more = LocalTrainer(
        accelerator="cpu", accumulate_grad_batches=3, limit_train_batches=0.5, detect_anomaly=True
    )
    assert set(more.further) == {"accumulate_grad_batches", "limit_train_batches", "detect_anomaly"}
    built = more.build()
    assert (built.accumulate_grad_batches, built.limit_train_batches, built._detect_anomaly) == (3, 0.5, True)


@pytest.mark.parametrize(("limit", "batches"), [(2, 2), (0.3, 3), (1.0, 10), (None, 10)])
def test_an_epoch_has_at_most_so_many_batches(limit, batches):
    update = fit(worker(limit_train_batches=limit), 0, num_steps=20)  # two epochs
    assert update.metrics["examples"] == 2 * batches * 4


def test_batches_of_one_step():
    """Two epochs of ten batches: one gradient of two batches is half as many steps."""
    steps = []
    one = worker(accumulate_grad_batches=2)
    one.module.on_before_optimizer_step = lambda optimizer: steps.append(1)
    assert fit(one, 0, num_steps=20).metrics["examples"] == 80
    assert len(steps) == 10


@pytest.mark.parametrize("together", [3, 4, 10, 30])
def test_the_last_step_of_an_epoch_is_a_whole_one(together):
    """Of ten batches, whatever does not divide them: a gradient is the mean over those that it has."""
    gradients = {}
    for number in (together, 1):
        one, found = worker(Steps(), accumulate_grad_batches=number), []
        weight = one.module.model.last_layer.weight
        one.module.on_before_optimizer_step = lambda _, to=found, of=weight: to.append(of.grad.clone())
        update = fit(one, 0, num_steps=10, lr_factor=0.0)
        gradients[number] = found
        assert Steps.seen[0] == [pytest.approx(update.metrics["train/loss"], abs=1e-6)]
    alone = gradients[1]
    means = [torch.stack(alone[at : at + together]).mean(0) for at in range(0, 10, together)]
    assert len(means) == len(gradients[together])
    for expected, grad in zip(means, gradients[together], strict=True):
        torch.testing.assert_close(grad, expected)


def test_a_share_of_batches_is_one_at_least():
    client = partial(ClientModule, optimizer=partial(torch.optim.SGD, lr=0.5))
    local = LocalTrainer(accelerator="cpu", limit_train_batches=0.4)
    small = Worker(make_data((4, 40)), OneNetwork(linear), client, local, WorkerSettings(0, 4, 100, False))
    seen = [fit(small, k, num_steps=n).metrics["examples"] for k, n in ((0, 1), (1, 10), (0, 1))]
    assert seen == [4, 16, 4]


def test_the_average_of_a_fit_leaves_alone_what_stays_as_it_is():
    """Whole numbers, frozen weights, -inf; what moves is averaged: .9 of 0 steps before it and .1 of each after."""
    one = worker(WeightAveraging(0.9))
    module, frozen = one.module, torch.rand(1000) * 100
    module.register_buffer("rows", torch.arange(100), persistent=False)
    module.register_buffer("fixed", frozen.clone(), persistent=False)
    module.register_buffer("absent", torch.full((3,), -torch.inf), persistent=False)
    averaged = fit(one, 0, num_steps=7)
    assert torch.equal(module.rows, torch.arange(100))
    assert torch.equal(module.fixed, frozen)
    assert torch.equal(module.absent, torch.full((3,), -torch.inf))
    plain, steps = worker(), []
    weight = plain.module.model.last_layer.weight
    plain.module.on_train_batch_end = lambda *_: steps.append(weight.detach().clone())
    fit(plain, 0, num_steps=7)
    expected = steps[0]
    for later in steps[1:]:
        expected = 0.9 * expected + 0.1 * later
    found = averaged.payload.params[next(name for name in averaged.payload.params if name.endswith("weight"))]
    torch.testing.assert_close(found, expected)
    assert not torch.equal(found, steps[-1])
    assert one.trainer.averages_weights
    assert not plain.trainer.averages_weights


def test_callbacks_read_the_mean_loss_of_an_epoch():
    update = fit(worker(Steps()), 0, num_steps=10)
    (losses,) = Steps.seen
    assert losses == [pytest.approx(update.metrics["train/loss"], abs=1e-6)]


def test_callbacks_change_nothing_by_being_there():
    assert same(fit(worker(Steps()), 0), fit(worker(), 0))


def test_early_stopping_ends_a_fit():
    whole = fit(worker(), 0)
    # From the second epoch on nothing is an improvement of 10.
    stopped = fit(worker(EarlyStopping("train/loss", patience=2, min_delta=10.0)), 0)
    assert (whole.metrics["examples"], stopped.metrics["examples"]) == (6 * 40, 3 * 40)


def test_a_callback_knows_nothing_of_the_client_before():
    """With one memory for all, the second client would be held to the losses of the first."""
    stopping = EarlyStopping("train/loss", patience=2, min_delta=10.0)
    alone = fit(worker(stopping), 1)
    both = worker(stopping)
    fit(both, 0)
    after = fit(both, 1)
    assert after.metrics == alone.metrics
    assert same(after, alone)
    assert stopping.wait_count == 0  # what was given stays as it was


def test_a_callback_that_is_added_for_a_while_stays_for_that_while():
    """As `commands.joining` does."""
    one = worker(EarlyStopping("train/loss", patience=2, min_delta=10.0))
    one.lightning.callbacks.append(Steps())
    for _ in range(2):
        fit(one, 0)
    assert len(Steps.seen) == 2
    assert sum(isinstance(callback, Steps) for callback in one.lightning.callbacks) == 1
    assert sum(isinstance(callback, EarlyStopping) for callback in one.lightning.callbacks) == 1


@pytest.mark.parametrize("callback", [TQDMProgressBar(), ModelSummary(), Timer({"hours": 1})])
def test_what_shows_something_is_let(callback):
    kind = type(callback)
    trainer = LocalTrainer(accelerator="cpu", callbacks=(callback,)).build()
    assert any(isinstance(found, kind) for found in trainer.callbacks)
    assert not any(isinstance(found, kind) for found in LocalTrainer(accelerator="cpu").build().callbacks)


def test_fits_leave_the_memory_of_a_gpu_alone(monkeypatch):
    """What Lightning's accelerators do around a fit is to give free memory back."""
    found = []
    for name in ("setup", "teardown"):
        monkeypatch.setattr(CPUAccelerator, name, lambda *_: found.append(1))
    trained = fit(worker(), 0)
    assert found == []
    assert trained.payload.params


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_half_precision_that_the_processor_only_emulates_is_named(monkeypatch, precision):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert LocalTrainer(precision="32-true").emulated(torch.device("cpu")) == ""
    assert LocalTrainer(precision=precision).emulated(torch.device("cuda")) == ""
    assert LocalTrainer(precision=precision).emulated(torch.device("cpu")) == (
        f"trainer.precision={precision} is emulated by this processor: some ten times slower than 32-true."
    )
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert LocalTrainer(precision=precision).emulated(torch.device("cpu")) == ""


def test_what_a_callback_makes_of_the_trainer_is_nothing_to_the_next_client():
    one = worker(GradientAccumulationScheduler({0: 1, 1: 2}))
    for client_id in (0, 1, 0):
        assert fit(one, client_id, num_steps=20).metrics["examples"] == 80
