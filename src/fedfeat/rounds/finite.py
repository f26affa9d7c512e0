"""What is not finite among the numbers of a round: said once, and written as NaN."""

import logging
import math
from collections import Counter
from dataclasses import asdict, replace

from fedfeat.runs.records import RoundRecord

_log = logging.getLogger("fedfeat")


class FiniteWatch:
    """Warns once in a run's course that its numbers are no longer finite."""

    def __init__(self) -> None:
        self._said = False

    def noted(self, record: RoundRecord) -> RoundRecord:
        """Give a round's record as it is written, with NaN for every metric that is not finite."""
        found = not_finite(record)
        if found and not self._said:
            self._said = True
            _log.warning(
                "Round %d: %s not finite, so training has diverged. Predictions without finite logits count as wrong, "
                "and what is not finite is written as nan, in later rounds too. A smaller optimizer.lr or "
                "trainer.gradient_clip_val=1 may keep it finite; debug=default names the first operation that is not.",
                record.round_idx,
                _listed(found),
            )
        metrics = {k: v if math.isfinite(v) else math.nan for k, v in record.metrics.items()}
        return replace(record, metrics=metrics)


def not_finite(record: RoundRecord) -> list[str]:
    """Name what is not finite in a record: metrics, and columns of clients with the number of clients.

    A client's loss of infinity is what a trimmed network has for a class that it lacks, hence a value like any other.
    """
    metrics = [name for name, value in record.metrics.items() if not math.isfinite(value)]
    columns = Counter(
        name
        for row in record.clients
        for name, value in asdict(row).items()
        if value is not None and math.isnan(value)
    )
    return metrics + [f"{name} of {count} client(s)" for name, count in sorted(columns.items())]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
