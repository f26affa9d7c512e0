"""From scores of single examples and clients to the metrics of the contract."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedfeat.clients.tasks import Task, Turns
from fedfeat.data.federated import FederatedData
from fedfeat.executors.base import Executor, raise_failures
from fedfeat.runs.records import ClientRow
from fedfeat.types import SentTo

ClientScores = dict[int, dict[str, float]]
"""By client ``own/acc`` and ``own/loss`` on its test part, beside what else is known of it."""


class Evaluation(NamedTuple):
    """What an evaluated round adds to its record; see `RoundRecord`."""

    metrics: dict[str, float] = {}  # noqa: RUF012 - never changed in place
    rows: tuple[ClientRow, ...] = ()
    observed: dict[str, tuple[float, ...]] = {}  # noqa: RUF012 - never changed in place


def weighted_mean(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean of ``values`` (N,), weighted by ``weights`` (N,) where given; one that is not finite is never left out."""
    # torchmetrics' MeanMetric leaves NaN out, or else ignores the weights (1.9, nan_strategy="disable").
    return float(np.average(values, weights=weights))


def summarise_clients(
    prefix: str, accuracies: Mapping[int, float], num_examples: np.ndarray
) -> dict[str, float]:
    """Sum clients' accuracies up as ``<prefix>_{mean,weighted,std,worst,p10}``.

    Args:
        prefix: ``global/client_acc`` or ``personal/acc``.
        accuracies: Client id to accuracy; clients without a test part are absent.
        num_examples: Training examples of every client (K,), the weights of ``weighted``, which is the plain
            mean where none of these clients has any.
    """
    if not accuracies:
        return {}
    values = np.array(list(accuracies.values()), dtype=np.float64)
    weights = num_examples[list(accuracies)].astype(np.float64)
    return {
        f"{prefix}_mean": weighted_mean(values),
        f"{prefix}_weighted": weighted_mean(values, weights if weights.any() else None),
        f"{prefix}_std": float(values.std()),
        f"{prefix}_worst": float(values.min()),
        f"{prefix}_p10": float(np.percentile(values, 10)),
    }


def summarise_observed(observed: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    """Sum up what a method watches, such as lambda by channel, as ``<name>_{mean,std,min,max}``."""
    return {
        f"{name}_{statistic}": float(getattr(np.array(values), statistic)())
        for name, values in observed.items()
        for statistic in ("mean", "std", "min", "max")
    }


def turn_metrics(turns: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Average the training loss of a round's fits, each by the examples that it has seen."""
    if not any(turn["examples"] for turn in turns.values()):
        return {}
    # Of every round, evaluated or not; a metric's object would take longer than a small round's aggregation.
    losses, seen = zip(*((turn["train/loss"], turn["examples"]) for turn in turns.values()), strict=True)
    return {"train/loss": float(np.average(losses, weights=seen))}


def evaluate_validation(executor: Executor, payload: Any) -> dict[str, float]:
    """Evaluate the server's model on all clients' validation examples."""
    scores = executor.score_validation(payload)
    return {"val/acc": weighted_mean(scores.correct), "val/loss": weighted_mean(scores.losses)}


def evaluate_global(
    executor: Executor, data: FederatedData, payload: Any, num_examples: np.ndarray
) -> tuple[dict[str, float], ClientScores]:
    """Evaluate the server's model on the full test set and on each client's test part.

    Where each client sees the inputs its own way (`permuted`), there is no common test set: ``global/*`` is then the
    mean over all clients' test examples, or of the whole test set as the server sees it (`server_order`).

    Returns:
        The metrics, and the scores of clients that have a test part.
    """
    sizes = data.test_sizes()
    if data.permuted:
        accuracies, losses = np.zeros(len(sizes)), np.zeros(len(sizes))
        for k in np.flatnonzero(sizes):
            score = executor.score(payload, data.test_indices(int(k)), int(k))
            accuracies[k], losses[k] = score.correct.mean(), score.losses.mean()
        total_acc, total_loss = weighted_mean(accuracies, sizes), weighted_mean(losses, sizes)
        if data.split.server_order:
            score = executor.score(payload)
            total_acc, total_loss = weighted_mean(score.correct), weighted_mean(score.losses)
    else:
        score = executor.score(payload)
        accuracies, losses = data.test_means(score.correct), data.test_means(score.losses)
        total_acc, total_loss = weighted_mean(score.correct), weighted_mean(score.losses)
    present = np.flatnonzero(sizes).tolist()
    by_client = {k: float(accuracies[k]) for k in present}
    metrics = {"global/acc": total_acc, "global/loss": total_loss}
    pooled = len(num_examples) != len(sizes)  # one training client, the test parts of many
    metrics |= summarise_clients("global/client_acc", by_client, sizes if pooled else num_examples)
    return metrics, {k: {"own/acc": by_client[k], "own/loss": float(losses[k])} for k in present}


def evaluate_further(
    executor: Executor, data: FederatedData, payloads: Mapping[str, Any], num_examples: np.ndarray
) -> dict[str, float]:
    """Evaluate more models of the server as `evaluate_global` and `evaluate_validation` do: ``global/<name>_acc``."""
    found: dict[str, float] = {}
    for name, payload in payloads.items():
        if isinstance(payload, SentTo):
            found |= {} if data.permuted else _evaluate_sent(executor, name, payload)
            continue
        metrics = evaluate_global(executor, data, payload, num_examples)[0]
        metrics |= evaluate_validation(executor, payload) if data.num_val else {}
        parts = ((kind, what) for kind in ("global", "val") for what in ("acc", "loss"))
        found |= {
            f"{k}/{name}_{what}": metrics[f"{k}/{what}"] for k, what in parts if f"{k}/{what}" in metrics
        }
    return found


def _evaluate_sent(executor: Executor, name: str, sent: SentTo) -> dict[str, float]:
    """Evaluate a model in a client's network on the full test set."""
    task = Task(sent.client_id, 0, sent.payload, None)
    (scores,) = raise_failures(executor.map("score_own", Turns([task.client_id], lambda _: task)))
    acc, loss = weighted_mean(scores.correct), weighted_mean(scores.losses)
    return {f"global/{name}_acc": acc, f"global/{name}_loss": loss}


def own_metrics(scores: Mapping[str, ClientScores], num_examples: np.ndarray) -> dict[str, float]:
    """Sum up the scores of clients' own models, on test and, where there are any, validation examples.

    Args:
        scores: See `client_rows`.
        num_examples: Training examples of every client (K,).
    """
    metrics: dict[str, float] = {}
    for kind, prefix in (("personal", "personal"), ("local", "local_pre_agg"), ("final", "final_all")):
        for name in ("acc", "val_acc"):
            own = {k: found[f"own/{name}"] for k, found in scores[kind].items() if f"own/{name}" in found}
            metrics |= summarise_clients(f"{prefix}/{name}", own, num_examples)
    return metrics


def client_rows(scores: Mapping[str, ClientScores], num_examples: np.ndarray) -> tuple[ClientRow, ...]:
    """Put an evaluated round together client by client.

    Args:
        scores: Of models of four kinds: ``global``, ``personal``, ``local`` right after the round's fits, with their
            metrics, and ``final`` after those that follow the last round.
        num_examples: Training examples of every client (K,).
    """

    def row(k: int) -> ClientRow:
        own = {
            f"{name}_{what}": found.get(k, {}).get(f"own/{what}")
            for name, found in scores.items()
            for what in ("acc", "loss")
        }
        turn = scores["local"].get(k, {})
        own["train_loss"] = turn.get("train/loss") if turn.get("examples") else None
        return ClientRow(k, int(num_examples[k]) if k < len(num_examples) else 0, **own)

    return tuple(row(k) for k in sorted(set().union(*scores.values())))
