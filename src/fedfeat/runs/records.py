"""Records of rounds: what the loop yields, and loggers, tables and figures consume."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClientRow:
    """One client in one evaluated round: a row of clients.csv; None where a value does not exist.

    Attributes:
        client_id: The client.
        num_examples: Its training examples.
        global_acc: Of the server's model on the client's test part, as `global_loss`.
        global_loss: See there.
        personal_acc: Of the client's own model on it, with the server's current shared part, as `personal_loss`.
        personal_loss: See there.
        local_acc: Of the model that the client had right after its local fit, as `local_loss`.
        local_loss: See there.
        train_loss: Of that fit.
        final_acc: Of the model after the fit of everyone that may follow the last round, as `final_loss`.
        final_loss: See there.
    """

    client_id: int
    num_examples: int
    global_acc: float | None = None
    global_loss: float | None = None
    personal_acc: float | None = None
    personal_loss: float | None = None
    local_acc: float | None = None
    local_loss: float | None = None
    train_loss: float | None = None
    final_acc: float | None = None
    final_loss: float | None = None


@dataclass(frozen=True)
class RoundRecord:
    """What the loop yields after a round; loggers, plots and checkpoints consume it.

    Attributes:
        round_idx: 1 after the first aggregation; 0 is the initial model.
        cohort: Ids of the clients that took part.
        metrics: Names of metrics.md#names (``global/acc``, ``comm/total_bytes``, ...) to values.
        evaluated: Whether this round was evaluated (a row of metrics.csv).
        clients: One row per client where the round was evaluated.
        alignment: `features.diagnostics.Alignment` of the cohort where it was measured.
        observed: What the method watches in the server's model, such as lambda by channel, where it was evaluated.
    """

    round_idx: int
    cohort: tuple[int, ...]
    metrics: dict[str, float]
    evaluated: bool
    clients: tuple[ClientRow, ...] = field(default=())
    alignment: Any = None
    observed: dict[str, tuple[float, ...]] = field(default_factory=dict)
