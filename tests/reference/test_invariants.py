"""What no method, executor or restart may change."""

import numpy as np
import pytest
import torch
from harness import make_data, network_of, parties, turn_of
from safetensors.torch import save
from torch import nn

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import TrainedTensors
from fedfeat.data.federated import FederatedData
from fedfeat.errors import ClientError
from fedfeat.models.mlp import mlp
from fedfeat.params import WeightedMean


def two_layers():
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5])


def personal(*selectors, cls=ClientModule):
    return lambda **arguments: cls(personal=list(selectors), **arguments)


@pytest.fixture
def drawn(monkeypatch):
    """The examples of every training batch, in the order in which they were drawn."""
    batches = []
    original = FederatedData.train_inputs

    def train_inputs(self, chosen, generator):
        batches.append(tuple(chosen.tolist()))
        return original(self, chosen, generator)

    monkeypatch.setattr(FederatedData, "train_inputs", train_inputs)
    return batches


def draws(drawn, federation, progress=None):
    """Run; give cohorts by round, and the batches."""
    drawn.clear()
    _, records = federation.run(progress)
    return {record.round_idx: record.cohort for record in records if record.cohort}, list(drawn)


PLAN = {"cohort_size": 2, "num_rounds": 4, "batch_size": 3, "local_epochs": 1.5}


@pytest.mark.parametrize(
    "client",
    [FedProxClient, personal("head"), personal("all", cls=FedProxClient)],
    ids=["prox", "head", "all"],
)
def test_cohort_and_batches_do_not_depend_on_the_method(client, drawn, tmp_path):
    expected = draws(drawn, parties(tmp_path / "a", build_model=two_layers, **PLAN))
    found = draws(drawn, parties(tmp_path / "b", build_model=two_layers, client=client, lr=0.1, **PLAN))
    assert found == expected
    cohorts, batches = expected
    assert set(cohorts) == {1, 2, 3, 4}
    assert len(set(cohorts.values())) > 1
    assert len(set(batches)) > len(batches) // 2  # the order is drawn anew in every round


def test_cohort_and_batches_do_not_depend_on_a_restart(drawn, tmp_path):
    whole = parties(tmp_path / "a", **PLAN)
    steps, _ = whole.run()
    cohorts, batches = draws(drawn, whole)
    torch.manual_seed(99)
    np.random.seed(99)
    later_cohorts, later_batches = draws(drawn, parties(tmp_path / "b", **PLAN), steps[2])
    assert later_cohorts == {round_idx: cohorts[round_idx] for round_idx in (3, 4)}
    assert later_batches == batches[-len(later_batches) :]
    assert 0 < len(later_batches) < len(batches)


@pytest.mark.parametrize(
    "client", [ClientModule, FedProxClient, personal("head")], ids=["avg", "prox", "head"]
)
def test_a_state_is_never_changed_in_place(client, tmp_path):
    federation = parties(tmp_path, build_model=two_layers, client=client, num_rounds=1)
    server, executor = federation.server, federation.executor
    state = federation.start().state
    before = tree.transform(state, torch.clone)
    payload = server.broadcast(state, 0)
    updates = list(executor.map("fit", [Task(k, 0, server.broadcast(state, k), None, 2) for k in range(3)]))
    assert tree.sha256(state) == tree.sha256(before)
    assert tree.sha256(payload) == tree.sha256(server.broadcast(before, 0))
    uploads = tree.transform([update.payload for update in updates], torch.clone)
    result = server.aggregate(state, iter(updates))
    executor.score(server.broadcast(result, 0))
    assert tree.sha256(state) == tree.sha256(before) != tree.sha256(result)
    assert tree.sha256([update.payload for update in updates]) == tree.sha256(uploads)
    # The new state shares no memory with an update, nor with the module in which the next client trains.
    digest = tree.sha256(result)
    for tensor in [
        *tree.tensors(uploads),
        *tree.tensors([u.payload for u in updates]),
        *executor.worker.module.parameters(),
    ]:
        tensor.data.fill_(7)
    assert tree.sha256(result) == digest


@pytest.mark.parametrize(
    "client", [ClientModule, FedProxClient, personal("head")], ids=["avg", "prox", "head"]
)
def test_the_mean_takes_updates_in_cohort_order_one_at_a_time(client, tmp_path, monkeypatch):
    """Client k is averaged before client k + 1 trains, so that memory does not grow with the cohort."""
    events = []
    fit, add = ClientModule.upload, WeightedMean.add
    monkeypatch.setattr(ClientModule, "upload", lambda self, *both: events.append("fit") or fit(self, *both))
    monkeypatch.setattr(WeightedMean, "add", lambda self, p, w: events.append(w) or add(self, p, w))
    parties(tmp_path, build_model=two_layers, client=client, num_rounds=1).run()
    assert events == ["fit", 3, "fit", 5, "fit", 8]


def poisoned(value):
    """Client 1, the one of 5 examples, ends with a weight that is not finite."""

    class Poisoned(ClientModule):
        def on_train_end(self):
            if self._num_seen == 5:
                with torch.no_grad():
                    next(self.model.parameters())[0, 0] = value

    return Poisoned


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_stop_the_run_with_one_sentence(value, tmp_path):
    with pytest.raises(
        ClientError, match=r"^Client 1 failed in round 1 \(seed \d+\): its update holds .* not finite\.$"
    ):
        parties(tmp_path, client=poisoned(value)).run()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_skipped_updates_never_reach_the_average(value, tmp_path, caplog):
    found, records = parties(tmp_path / "a", client=poisoned(value), skip_failed=True).run()
    uploads = records[-1].metrics["comm/up_bytes"]
    data = make_data()
    server = FedAvgServer()
    healthy = parties(tmp_path / "b", data=data, server=server)
    state = healthy.start().state
    for round_idx in range(2):
        tasks = [Task(k, round_idx, server.broadcast(state, k), None, 1) for k in (0, 2)]
        state = server.aggregate(state, healthy.executor.map("fit", tasks))
    assert tree.sha256(found[-1].state) == tree.sha256(state)
    assert uploads == 2 * 2 * 15 * 4
    assert records[-1].metrics["clients/failed"] == 1
    assert caplog.text.count("Client 1 failed") == 2


def test_a_personal_tensor_that_is_not_finite_is_refused_and_not_kept(tmp_path):
    class Poisoned(ClientModule):
        def on_train_end(self):
            torch.nn.init.constant_(self.model.head.fc2.linear.bias, float("nan"))

    federation = parties(tmp_path, build_model=two_layers, client=personal("head", cls=Poisoned))
    with pytest.raises(ClientError, match="not finite"):
        federation.run()
    assert len(federation.store) == 0


def serialised(payload):
    """Bytes of the tensors in a safetensors file: all but the length field and the header."""
    named = {str(i): tensor.contiguous() for i, tensor in enumerate(tree.tensors(payload))}
    blob = save(named)
    return len(blob) - 8 - int.from_bytes(blob[:8], "little")


@pytest.mark.parametrize("selectors", [(), ("head",), ("norm",)])
def test_bytes_are_those_of_the_serialised_tensors(selectors, tmp_path):
    def model():
        return network_of(nn.BatchNorm1d(4), nn.Linear(4, 3))

    build = model if "norm" in selectors else two_layers
    federation = parties(tmp_path, build_model=build, client=personal(*selectors), cohort_size=2)
    steps, records = federation.run()
    module = federation.executor.worker.module
    one = serialised(federation.server.broadcast(steps[-1].state, 0))
    assert one == sum(
        t.numel() * t.element_size() for k, t in module.model.state_dict().items() if k in module.shared_keys
    )
    assert serialised(module.upload(turn_of(), TrainedTensors(module))[0]) == one > 0
    assert records[-1].metrics["comm/up_bytes"] == records[-1].metrics["comm/down_bytes"] == 2 * 2 * one
    assert records[-1].metrics["comm/total_bytes"] == 2 * 2 * 2 * one


@pytest.mark.parametrize("keep", [False, True])
def test_a_personal_tensor_never_enters_a_payload(keep, tmp_path):
    federation = parties(
        tmp_path, build_model=two_layers, client=personal("head"), momentum=0.9, keep_optimizer=keep
    )
    sent = []
    aggregate = federation.server.aggregate
    federation.server.aggregate = lambda state, updates: aggregate(
        state, (sent.append(u) or u for u in updates)
    )
    steps, _ = federation.run()
    heads = {key for key in federation.executor.worker.module.model.state_dict() if key.startswith("head.")}
    assert heads == {"head.fc2.linear.weight", "head.fc2.linear.bias"}
    assert len(sent) == 2 * 3
    for update in sent:
        assert set(update.payload.params) == {"encoder.fc1.linear.weight", "encoder.fc1.linear.bias"}
        assert set(update.kept.personal) == heads
        assert bool(update.kept.optimizer) == keep
    assert not heads & set(steps[-1].state.params)
    # The heads differ, since nobody averaged them.
    first, second = (federation.store.get(k).personal["head.fc2.linear.weight"] for k in (0, 1))
    assert not torch.equal(first, second)


def test_personal_state_in_memory_is_bounded_by_its_budget(tmp_path, monkeypatch):
    """Eight models of 4 * 5 + 5 + 5 * 3 + 3 = 43 weights; 400 bytes hold two of them."""
    data = make_data((2,) * 8)
    arguments = {"data": data, "build_model": two_layers, "client": personal("all"), "momentum": 0.9}
    roomy = parties(tmp_path / "roomy", **arguments)
    roomy.run()
    tight = parties(tmp_path / "tight", **arguments, ram_budget=400)
    held = []
    put = tight.store.put
    monkeypatch.setattr(tight.store, "put", lambda *a: (put(*a), held.append(tight.store.num_bytes))[0])
    tight.run()
    assert len(held) == 16
    assert max(held) == 2 * 43 * 4
    assert roomy.store.num_bytes == 8 * 43 * 4
    for k in range(8):
        assert tree.sha256(tight.store.get(k)) == tree.sha256(roomy.store.get(k))


def test_the_same_run_twice_is_the_same_to_the_last_bit(tmp_path):
    runs = [parties(tmp_path / name, build_model=two_layers, **PLAN).run() for name in "ab"]
    assert tree.sha256(runs[0][0][-1].state) == tree.sha256(runs[1][0][-1].state)
