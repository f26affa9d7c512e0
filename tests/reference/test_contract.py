"""The contract of a method, on one that needs nearly all of it: memory, the turn, uploads by tensors, stacking."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scaffold_sketch
import torch
from float64_runs import run as run_config
from harness import LR, SIZES, examples_of, gradient, linear, make_data, parties
from scaffold_sketch import Control, ScaffoldClient, ScaffoldServer

from fedfeat import tree
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.errors import ClientError
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.serial import SerialExecutor
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.models.mlp import mlp
from fedfeat.server import Server
from fedfeat.types import Survey

STEPS = 2


def federation_of(store_dir, **plan):
    arguments = {"num_rounds": 3, "local_epochs": None, "local_steps": STEPS, "cohort_size": 2, "lr": LR}
    return parties(store_dir, client=ScaffoldClient, server=ScaffoldServer(), **(arguments | plan))


def by_hand(data, cohorts):
    """Algorithm 1 on the softmax regression, full batches: x, c and all c_k after the last cohort."""
    zero = (np.zeros((3, 4)), np.zeros(3))
    x, c, own = zero, zero, dict.fromkeys(range(len(SIZES)), zero)
    for cohort in cohorts:
        ys, changes = [], []
        for k in cohort:
            y = x
            for _ in range(STEPS):
                g = gradient(*y, *examples_of(data, k))
                y = tuple(y[i] - LR * (g[i] - own[k][i] + c[i]) for i in range(2))
            new = tuple(own[k][i] - c[i] + (x[i] - y[i]) / (STEPS * LR) for i in range(2))
            changes.append(tuple(new[i] - own[k][i] for i in range(2)))
            own[k] = new
            ys.append(y)
        x = tuple(np.mean([y[i] for y in ys], axis=0) for i in range(2))
        c = tuple(c[i] + np.sum([change[i] for change in changes], axis=0) / len(SIZES) for i in range(2))
    return x, c, own


def test_rounds_of_some_of_unequal_clients_by_hand(tmp_path):
    federation = federation_of(tmp_path)
    steps, records = federation.run()
    x, c, own = by_hand(federation.data, [record.cohort for record in records[1:]])
    state = steps[-1].state
    for found, expected in ((state.params, x), (state.control, c)):
        for tensor, numbers in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(tensor.numpy(), numbers, rtol=0, atol=1e-6)
    assert len({record.cohort for record in records[1:]}) > 1
    for k in federation.store:
        kept = federation.store.get(k)
        assert isinstance(kept.memory, Control)
        assert kept.personal == kept.optimizer == {}
        for tensor, numbers in zip(kept.memory.control.values(), own[k], strict=True):
            np.testing.assert_allclose(tensor.numpy(), numbers, rtol=0, atol=1e-6)


def test_the_common_control_is_the_mean_of_all_clients(tmp_path):
    """Also of those that have never taken part, whose control is zero."""
    federation = federation_of(tmp_path, num_rounds=2)
    steps, _ = federation.run()
    kept = [federation.store.get(k).memory.control for k in federation.store]
    for key, tensor in steps[-1].state.control.items():
        mean = sum(control[key] for control in kept) / len(SIZES)
        torch.testing.assert_close(tensor, mean, rtol=0, atol=1e-6)


def two_layers():
    torch.manual_seed(0)
    return mlp((4,), 3, hidden=[5], dropout=0.2)


def test_stacked_turns_upload_what_single_ones_do(tmp_path):
    found = []
    for name, executor in (("serial", None), ("stacked", VectorizedExecutor)):
        options = {} if executor is None else {"build_executor": executor}
        federation = federation_of(
            tmp_path / name, build_model=two_layers, batch_size=2, cohort_size=3, **options
        )
        steps, _ = federation.run()
        found.append((steps[-1].state, [federation.store.get(k) for k in federation.store]))
    for left, right in zip(tree.tensors(found[0]), tree.tensors(found[1]), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-5)


def own_head(store_dir, **plan):
    """FedPer with momentum that clients keep."""
    client = partial(ClientModule, personal=["head"])
    kept = {"keep_optimizer": True, "momentum": 0.9, "personal": True}
    return parties(store_dir, client=client, lr=0.1, **({"num_rounds": 3, "cohort_size": 2} | kept | plan))


@pytest.mark.parametrize("make", [federation_of, own_head], ids=["controls", "heads and momentum"])
@pytest.mark.parametrize(
    "build_executor",
    [SerialExecutor, partial(ProcessExecutor, num_processes=2), VectorizedExecutor],
    ids=["serial", "processes", "vectorized"],
)
def test_a_run_goes_on_from_its_middle_with_what_clients_keep(build_executor, make, tmp_path):
    with ExitStack() as stack:

        def begun(name, **plan):
            federation = make(tmp_path / name, build_executor=build_executor, **plan)
            federation.executor.start()
            stack.callback(federation.executor.close)
            return federation

        whole = begun("whole")
        steps, _ = whole.run()
        first = begun("cut", num_rounds=2)
        progress = first.run()[0][-1]
        manifest = first.store.persist()
        second = begun("cut")
        second.store._trusted = ("fedfeat", "scaffold_sketch")
        second.store.restore(manifest)
        second.start()
        last = second.run(progress)[0][-1]
    assert tree.sha256(last.state) == tree.sha256(steps[-1].state)
    assert len([*whole.store]) > 1
    assert [tree.sha256(second.store.get(k)) for k in second.store] == [
        tree.sha256(whole.store.get(k)) for k in whole.store
    ]


def test_the_sketch_is_short_and_overrides_nothing_of_lightning_and_no_receive():
    lines = Path(scaffold_sketch.__file__).read_text().splitlines()
    assert len(lines) <= 90
    own = {name for name in vars(ScaffoldClient) if not name.startswith("__")}
    assert own == {"payload_type", "apart", "begin_turn", "loss", "upload"}


class Second(ClientModule):
    """Trains a second model beside the first, and calls that one the client's own."""

    keeps_model = True
    apart = None

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.second = linear()

    def receive(self, payload, memory):
        super().receive(payload, memory)
        for parameter in self.second.parameters():
            torch.nn.init.zeros_(parameter)

    def loss(self, batch):
        inputs, labels = batch
        return super().loss(batch) + 3 * self.cross_entropy(self.second(inputs), labels)

    def predict(self, inputs):
        return self.second(inputs)

    def upload(self, turn, tensors):
        payload, _ = super().upload(turn, tensors)
        return payload, Control(tensors["second"])


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_whatever_a_half_trains_has_an_optimizer_and_what_it_calls_its_own_is_scored(executor, tmp_path):
    """One step from zero with three times the gradient: the second model is three times the first."""
    options = {"build_executor": VectorizedExecutor} if executor == "vectorized" else {}
    federation = parties(
        tmp_path, client=Second, num_rounds=1, personal=True, evaluate_local=True, lr=0.1, **options
    )
    own = federation.start().state
    update = next(iter(federation.executor.map("fit", [_task(federation, own, k) for k in range(2)])))
    for first, second in zip(
        update.payload.params.values(), update.kept.memory.control.values(), strict=True
    ):
        torch.testing.assert_close(second, 3 * first)
        assert first.abs().sum() > 0
    module = federation.executor.worker.module
    with torch.no_grad():
        for parameter in module.second.parameters():
            parameter.copy_(torch.zeros_like(parameter))
        module.second.last_layer.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))
    labels = federation.data.dataset.test.labels
    assert federation.executor.worker.own_score(module, 0)["own/acc"] == pytest.approx(
        float((labels == 0).double().mean())
    )


def _task(federation, state, client_id):
    return federation.plan.task(0, client_id, 1, federation.server.broadcast(state, client_id), None)


class Asked(ScaffoldClient):
    """Answers a survey with a record of its own."""

    def answer(self, inputs, part):
        assert not self.training
        return Control({"mean": self.plain(inputs).mean(0)})


class Asking(ScaffoldServer):
    """Asks everyone about 5 inputs before each round, and notes who has answered."""

    def __init__(self, counted):
        self.counted, self.heard = counted, []

    def survey(self, state, round_idx):
        return Survey("train_pool", 5, "all", sends=True, counted=self.counted)

    def hear(self, state, inputs, answers):
        for answer in answers:
            torch.testing.assert_close(answer.payload.control["mean"], inputs.mean(0))
            self.heard.append(answer.client_id)
        return state


def test_answers_to_a_survey_are_the_methods_own_and_are_counted_where_they_are_sent(tmp_path):
    """4 numbers of 4 bytes from each of 3 clients, who receive 5 times as much, and in either case x and c.

    Where inputs lie in what the cohort of one is sent, the other two are sent theirs apart.
    """
    sent, received = {}, {}
    for counted in ("all", "answers", "none"):
        server = Asking(counted)
        federation = parties(tmp_path / counted, client=Asked, server=server, num_rounds=2, cohort_size=1)
        records = federation.run()[1]
        sent[counted], received[counted] = (
            [record.metrics[f"comm/{way}_bytes"] for record in records] for way in ("up", "down")
        )
        assert server.heard == [0, 1, 2] * 2
    assert sent["answers"] == sent["all"]
    assert [a - b for a, b in zip(sent["all"], sent["none"], strict=True)] == [0, 48, 96]
    assert [a - b for a, b in zip(received["all"], received["none"], strict=True)] == [0, 240, 480]
    assert [a - b for a, b in zip(received["answers"], received["none"], strict=True)] == [0, 160, 320]
    assert received["none"] == [0, *(t * 4 * 2 * 4 * 15 for t in (1, 2))]


def test_a_client_that_keeps_no_model_does_not_answer_to_nothing(tmp_path):
    """Else it would answer with whatever model was there before."""
    federation = parties(tmp_path, client=Asked, server=Asking("all"))
    with pytest.raises(ClientError, match=r"can only answer to what is sent \(Survey\.sends\)"):
        federation.executor.worker.answer(Task(0, 0, None, None), torch.zeros(2, 4))


class Deaf(ScaffoldServer):
    """Looks at no update."""

    def aggregate(self, state, updates):
        return state


def test_everyone_trains_even_where_the_server_half_looks_at_no_update(tmp_path):
    options = {"local_epochs": None, "local_steps": STEPS, "num_rounds": 2, "cohort_size": 2}
    federation = parties(tmp_path, client=ScaffoldClient, server=Deaf(), **options)
    _, records = federation.run()
    assert all("train/loss" in record.metrics for record in records[1:])
    assert len(federation.store)


class Looking(ClientModule):
    """Counts its own right answers over its data when it uploads."""

    runs_at_upload = True

    def upload(self, turn, tensors):
        payload, _ = super().upload(turn, tensors)
        assert not self.training
        found = [(self(x).argmax(1) == y, y) for x, y in turn.batches(2)]
        self.labels = torch.cat([y for _, y in found])
        return payload, Control({"right": torch.cat([right for right, _ in found]).float()})


def test_an_upload_can_look_at_the_clients_data_in_their_fixed_order(tmp_path):
    federation = parties(tmp_path, client=Looking, num_rounds=1)
    federation.run()
    data, module = federation.data, federation.executor.worker.module
    for k in federation.store:
        kept = federation.store.get(k).memory.control["right"]
        assert len(kept) == data.num_examples(k)
    last = max(federation.store)
    assert torch.equal(module.labels, data.dataset.train.labels[data.split.train.of(last)])


class Stumbling(Looking):
    """Fails at the upload of client 0."""

    def upload(self, turn, tensors):
        if turn.client_id == 0:
            raise RuntimeError("no luck")
        return super().upload(turn, tensors)


def test_a_failed_upload_leaves_nothing_in_eval_mode(tmp_path):
    federation = parties(tmp_path, client=Stumbling, num_rounds=1, skip_failed=True)
    _, records = federation.run()
    assert records[-1].metrics["clients/failed"] == 1
    module = federation.executor.worker.module
    state = federation.start().state
    with pytest.raises(ClientError, match="no luck"):
        federation.executor.worker.fit(_task(federation, state, 0))
    assert all(part.training for part in module.modules())


class Spending(ScaffoldServer):
    """Computes with what it is given at every start."""

    def setup(self, site):
        super().setup(site)
        self.network = site.networks.build()

    def aggregate(self, state, updates):
        inputs, labels = self.site.examples("train_pool", 5, 0)
        assert len(inputs) == len(labels) == 5
        with self.site.autocast():
            self.network(self.site.plain(inputs))
        self.site.spend(1000.0)
        return super().aggregate(state, updates)


def test_what_a_server_half_computes_is_counted(tmp_path):
    flops = []
    for kind in (ScaffoldServer, Spending):
        federation = parties(
            tmp_path / kind.__name__, client=ScaffoldClient, server=kind(), num_rounds=2, cohort_size=2
        )
        flops.append(federation.run()[1][-1].metrics["compute/flops"])
    assert flops[1] - flops[0] == 2 * 1000


def test_a_half_around_another_refuses_one_that_does_not_average():
    from fedfeat.algorithms.fedfusion import FedFusionServer
    from fedfeat.errors import ConfigError

    with pytest.raises(ConfigError, match=r"algorithm\.server\.average must be a server half that averages"):
        FedFusionServer(ScaffoldServer())
    assert issubclass(ScaffoldServer, Server)


def test_data_of_the_sketches_are_unequal():
    counts = [make_data().num_examples(k) for k in range(3)]
    assert len(set(counts)) == 3
    assert partial(linear)().state_dict()


class Noting(ScaffoldClient):
    """Notes its turns."""

    seen = []  # noqa: RUF012 - emptied by the test

    def begin_turn(self, turn):
        super().begin_turn(turn)
        Noting.seen.append((turn.round_idx, turn.client_id, turn.num_steps, turn.lr, turn.class_counts.sum()))


def test_a_turn_says_who_when_how_long_and_at_which_rate(tmp_path):
    Noting.seen.clear()
    federation = parties(
        tmp_path,
        client=Noting,
        server=ScaffoldServer(),
        local_epochs=2,
        batch_size=3,
        lr=0.5,
        lr_factor=lambda round_idx, num_rounds: 0.5**round_idx,
    )
    federation.run()
    steps = {0: 2, 1: 4, 2: 6}  # of 3, 5 and 8 examples
    assert Noting.seen == [(t, k, steps[k], 0.5 * 0.5**t, SIZES[k]) for t in range(2) for k in range(3)]


class Counting(ClientModule):
    """Notes at its uploads how many steps its turns have made."""

    made: ClassVar[dict[int, int]] = {}

    def upload(self, turn, tensors):
        self.made[turn.client_id] = turn.num_steps
        return super().upload(turn, tensors)


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")
@pytest.mark.parametrize("executor", [SerialExecutor, VectorizedExecutor])
def test_an_upload_knows_the_steps_that_were_made(executor, tmp_path):
    """A client without examples makes none, though the plan has one for everybody."""
    Counting.made.clear()
    data = make_data((4, 0, 5, 1))
    plan = {"data": data, "batch_size": 2, "local_epochs": 2, "num_rounds": 1, "client": Counting}
    parties(tmp_path, build_executor=executor, **plan).run()
    assert Counting.made == {0: 4, 1: 0, 2: 6, 3: 2}


def test_also_where_the_trainer_ends_a_fit_early(tmp_path, monkeypatch):
    made, upload = [], ClientModule.upload
    monkeypatch.setattr(
        ClientModule, "upload", lambda self, turn, t: (made.append(turn.num_steps), upload(self, turn, t))[1]
    )
    options = ("trainer.limit_train_batches=2", "federation.local_epochs=2", "federation.num_rounds=1")
    run_config(tmp_path, "algorithm=fedavg", *options)
    assert made == [4] * 4
