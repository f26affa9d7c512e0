"""Methods with models of the clients' own beside public codes, where docs/deviations.md says that the two differ."""

from functools import partial

import numpy as np
import pytest
import torch
from deviating import gap, pair_of
from harness import LR, SIZES, examples_of, gradient, make_data, parties
from linear_rounds import ZERO, added, mean
from personal_rounds import network

from fedfeat.algorithms.apfl import APFLClient
from fedfeat.algorithms.fedala import FedALAClient
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.per_fedavg import PerFedAvgClient
from fedfeat.algorithms.pfedme import PFedMeClient, PFedMeServer
from fedfeat.client import ClientModule

DATA = make_data()
EPOCHS = 2


def slope(pair, k):
    return gradient(*pair, *examples_of(DATA, k))


def on_test(pair):
    """Mean cross-entropy on the test set, which is that of every client here."""
    x, y = DATA.dataset.test.inputs.double().numpy(), DATA.dataset.test.labels.numpy()
    logits = x @ pair[0].T + pair[1]
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]))


def run(folder, **plan):
    """Give what each client keeps, the server's last model, and the clients' test losses, also right after fits."""
    arguments = {"local_epochs": EPOCHS, "num_rounds": 1, "precision": "64-true", "personal": True}
    arguments["evaluate_local"] = True
    federation = parties(folder, **(arguments | plan))
    steps, records = federation.run()
    kept = {k: federation.store.get(k).memory for k in federation.store}
    losses = {row.client_id: (row.personal_loss, row.local_loss) for row in records[-1].clients}
    return kept, pair_of(steps[-1].state.params), losses


LAM, INNER = 1.0, 0.1


def moreau(k, mu=0.0):
    """pFedMe's theta and w of a first turn."""
    w = theta = ZERO
    for _ in range(EPOCHS):
        for _ in range(5):
            steps = (-INNER, slope(theta, k)), (-INNER * LAM, theta), (INNER * LAM, w), (-INNER * mu, theta)
            theta = added((1, theta), *steps)
        w = added((1 - LR * LAM, w), (LR * LAM, theta))
    return theta, w


def test_the_model_that_pfedme_is_scored_by_is_theta(tmp_path):
    """A reference to parameters that w, or later the next received model, has overwritten gives these."""
    client = partial(PFedMeClient, lam=LAM, inner_steps=5, inner_lr=INNER)
    kept, received, losses = run(tmp_path, client=client, server=PFedMeServer(average=FedAvgServer()))
    others = {0: (-0.103, -0.265), 1: (0.022, 0.094), 2: (-0.007, -0.007)}
    for k, (by_w, by_received) in others.items():
        theta, w = moreau(k)
        assert gap(pair_of(kept[k].params), theta) < 1e-12
        assert losses[k] == pytest.approx((on_test(theta),) * 2, abs=1e-12)
        assert on_test(w) - on_test(theta) == pytest.approx(by_w, abs=1e-3)
        assert on_test(received) - on_test(theta) == pytest.approx(by_received, abs=1e-3)


def test_the_decay_of_theta_that_is_not_in_the_paper(tmp_path):
    """Both are ours, by a key; the code has .001."""
    halves = {"server": PFedMeServer(average=FedAvgServer())}
    found = []
    for mu in (0.0, 0.001):
        client = partial(PFedMeClient, lam=LAM, inner_steps=5, inner_lr=INNER, mu=mu)
        kept, _, _ = run(tmp_path / str(mu), client=client, **halves)
        assert gap(pair_of(kept[2].params), moreau(2, mu)[0]) < 1e-12
        found.append(pair_of(kept[2].params))
    assert gap(*found) == pytest.approx(8.3e-5, abs=1e-6)


def test_the_own_model_of_per_fedavg_is_made_of_training_examples(tmp_path):
    """Two steps on test examples bring everyone's loss on these below that of the common model."""
    _, w, losses = run(tmp_path, client=partial(PerFedAvgClient, alpha=0.3))
    for k in range(3):
        assert losses[k][0] == pytest.approx(on_test(added((1, w), (-0.3, slope(w, k)))), abs=1e-12)
    x, y = DATA.dataset.test.inputs.double().numpy(), DATA.dataset.test.labels.numpy()
    by_test = w
    for rate in (0.3, LR):
        by_test = added((1, by_test), (-rate, gradient(*by_test, x, y)))
    assert [losses[k][0] for k in range(3)] == pytest.approx([1.315, 1.133, 1.230], abs=1e-3)
    assert [on_test(w), on_test(by_test)] == pytest.approx([1.217, 0.600], abs=1e-3)


def apfl(alpha, num_rounds, by):
    """v of client 2 and the server's w after each round, in which everyone takes part."""
    w, own = ZERO, dict.fromkeys(range(3), ZERO)
    for _ in range(num_rounds):
        ends = []
        for k in range(3):
            y = w
            for _ in range(EPOCHS):
                if by == "paper":
                    at = added((alpha, own[k]), (1 - alpha, y))
                    own[k], y = (
                        added((1, own[k]), (-LR * alpha, slope(at, k))),
                        added((1, y), (-LR, slope(y, k))),
                    )
                elif by == "overwritten":
                    own[k], y = added((1, own[k]), (-LR, slope(own[k], k))), added((1, y), (-LR, slope(y, k)))
                else:
                    y = added((1, y), (-2 * LR, slope(y, k)))
            if by == "overwritten":
                own[k] = added((alpha, own[k]), (1 - alpha, y))
            ends.append(y)
        w = mean(ends, SIZES)
    return own[2], w


def test_v_that_mixtures_overwrite_and_w_that_makes_each_step_twice(tmp_path):
    """Both at alpha = .5, held: the one takes v's gradient at v and mixes w in after a turn, the other steps anew."""
    kept, found, _ = run(tmp_path, client=partial(APFLClient, alpha=0.5), num_rounds=2)
    v, w = apfl(0.5, 2, "paper")
    assert max(gap(pair_of(kept[2].params), v), gap(found, w)) < 1e-12
    assert gap(v, apfl(0.5, 2, "overwritten")[0]) == pytest.approx(0.171, abs=1e-3)
    assert gap(w, apfl(0.5, 2, "twice")[1]) == pytest.approx(0.144, abs=1e-3)


def test_the_sample_of_fedala_is_no_run_of_neighbours(tmp_path):
    """Six of 8 examples in their order: a run of them has the four in the middle always, the ends in a third."""
    federation = parties(tmp_path, client=partial(FedALAClient, share=0.8), personal=True)
    worker, state = federation.executor.worker, federation.start().state
    own = DATA.dataset.train.inputs[DATA.split.train.of(2)]
    counts = torch.zeros(8)
    for round_idx in range(400):
        task = federation.plan.task(round_idx, 2, 1, federation.server.broadcast(state, 2), None)
        ((inputs, _),) = worker.module._sample(worker.begin(worker.module, task))
        counts += (own[:, None] == inputs).all(2).any(1)
    torch.testing.assert_close(counts / 400, torch.full((8,), 0.75), rtol=0, atol=0.08)
    runs = torch.stack(
        [torch.arange(8).sub(start).abs_().lt(6) & (torch.arange(8) >= start) for start in range(3)]
    )
    torch.testing.assert_close(runs.double().mean(0), torch.tensor([1, 2, 3, 3, 3, 3, 2, 1]).double() / 3)


def test_the_best_network_by_test_accuracy_is_no_score_of_a_method(tmp_path):
    """LG-FedAvg's heads are shared; each client's best of 8 rounds on the test set, and the last one."""
    client = partial(ClientModule, personal=["encoder"])
    plan = {"build_model": network, "cohort_size": 1, "num_rounds": 8, "local_epochs": 4, "personal": True}
    records = parties(tmp_path, client=client, precision="64-true", **plan).run()[1]
    table = [[row.personal_acc for row in record.clients] for record in records]
    best, last = np.max(table, axis=0).mean(), np.mean(table[-1])
    assert (best, last) == (pytest.approx(5 / 18), pytest.approx(3 / 18))
