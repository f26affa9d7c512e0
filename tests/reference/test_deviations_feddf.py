"""FedDF beside what its public code makes of it, which docs/deviations.md names: rules anew in plain torch."""

import itertools

import pytest
import torch
from torch.nn import functional

from fedfeat.algorithms.distillation import Distillation, Ensemble, batches, distil
from fedfeat.params import WeightedMean

STEPS, EVERY, RATE, T = 8, 2, 0.1, 2.0
SCORES = (0.5, 0.7, 0.6, 0.65)
INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(9)).double()


def model(seed, dropout=0.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(dropout)).double()


def ours(kind="logits", keep="best", scores=SCORES, temperature=T, teachers=None):
    student, ensemble, left = model(5), Ensemble(INPUTS, lambda x: x, temperature, kind), iter(scores)
    for teacher in teachers or (model(1), model(2)):
        ensemble.add(teacher)
    course = Distillation(STEPS, 4, RATE, temperature, EVERY, None, keep)
    order = torch.Generator().manual_seed(3)
    distil(
        student, lambda own: student(INPUTS[own]), ensemble.probabilities(), course, order, lambda: next(left)
    )
    return student[0].weight.detach()


def theirs(loss, scores=SCORES, start_score=0.0, starts=False, teachers=None):
    """Steps of `NoiseKTSolver.distillation`; ``loss`` takes the student's logits and the teachers'."""
    student, teachers, best = model(5), teachers or (model(1), model(2)), -1.0
    first = kept = student[0].weight.detach().clone()
    optimizer = torch.optim.Adam(student.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    order = batches(len(INPUTS), 4, torch.Generator().manual_seed(3))
    left = iter(scores)
    for step, own in enumerate(itertools.islice(order, STEPS), start=1):
        with torch.no_grad():
            said = [teacher(INPUTS[own]) for teacher in teachers]
        optimizer.zero_grad()
        loss(student(INPUTS[own]), said).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 5)
        optimizer.step()
        schedule.step()
        if step % EVERY == 0 and (score := next(left)) > best:
            best, kept = score, student[0].weight.detach().clone()
    return first if starts and start_score > best else kept


def kl(logits, target):
    return functional.kl_div((logits / T).log_softmax(1), target, reduction="batchmean")


def of_logits(logits, said):
    return kl(logits, (sum(said) / len(said) / T).softmax(1))


def of_losses(logits, said):
    return sum(kl(logits, (z / T).softmax(1)) for z in said) / len(said)


def of_probabilities(logits, said):
    return kl(logits, sum(z.softmax(1) for z in said) / len(said))


def gap(left, right):
    return float((left - right).abs().max())


def test_without_a_deviation_the_rule_is_ours():
    assert gap(ours(), theirs(of_logits)) < 1e-14


def test_the_best_student_that_was_looked_at_counts_whatever_the_flag_says():
    """The flag only lets the start compete."""
    assert gap(theirs(of_logits, start_score=0.9), ours()) < 1e-14
    assert gap(theirs(of_logits, start_score=0.9, starts=True), model(5)[0].weight.detach()) == 0
    assert gap(ours(keep="last"), ours()) == pytest.approx(0.0813, abs=1e-4)


def test_the_mean_of_the_losses_has_the_gradients_of_the_mean_of_the_probabilities():
    assert gap(theirs(of_losses), ours("probabilities")) < 1e-14
    assert gap(theirs(of_losses), ours()) == pytest.approx(0.2027, abs=1e-4)


def test_a_temperature_that_teachers_do_not_have():
    assert gap(theirs(of_probabilities), ours("probabilities")) == pytest.approx(0.1195, abs=1e-4)


def test_teachers_that_were_scored_drop_out():
    teachers = [model(seed, dropout=0.5).train() for seed in (1, 2)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = theirs(of_logits, teachers=teachers)
    assert gap(found, ours()) > 0.05


def test_a_mean_without_weights_and_statistics_of_the_last_client():
    """Clients of 3, 5 and 8 examples at 0, 1 and 2: 1 and 2 for 21 / 16."""
    weighted, plain = WeightedMean(), WeightedMean()
    for value, size in ((0.0, 3), (1.0, 5), (2.0, 8)):
        weighted.add({"w": torch.tensor([value])}, size)
        plain.add({"w": torch.tensor([value])}, 1)
        last = value
    assert (weighted.result()["w"].item(), plain.result()["w"].item(), last) == (21 / 16, 1, 2)
