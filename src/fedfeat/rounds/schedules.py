"""Learning-rate factors per round. Local fits are short, so schedules follow the global round, not the local step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fedfeat.config.conditions import Count, Natural, UnitInterval, interval, list_of
from fedfeat.data.partition.parts import share_of

Factor = Annotated[float, interval("(0, 1]")]


@dataclass(frozen=True)
class Constant:
    """Factor 1."""

    def __call__(self, round_idx: int, num_rounds: int) -> float:
        """Factor of the learning rate in round ``round_idx`` (from 0) of ``num_rounds``."""
        return 1.0


@dataclass(frozen=True)
class Exponential:
    """``gamma ** round``, never below ``floor`` (a factor)."""

    gamma: Factor
    floor: UnitInterval = 0.0

    def __call__(self, round_idx: int, num_rounds: int) -> float:
        """Factor of the learning rate in round ``round_idx`` (from 0) of ``num_rounds``."""
        return max(self.gamma**round_idx, self.floor)


@dataclass(frozen=True)
class Step:
    """Multiply by ``gamma`` after every ``every`` rounds."""

    every: Count
    gamma: Factor = 0.1

    def __call__(self, round_idx: int, num_rounds: int) -> float:
        """Factor of the learning rate in round ``round_idx`` (from 0) of ``num_rounds``."""
        return self.gamma ** (round_idx // self.every)


@dataclass(frozen=True)
class Milestones:
    """Multiply by ``gamma`` once each of these shares of the rounds is over, in whole rounds and after one at least."""

    shares: Annotated[Sequence[float], list_of(interval("(0, 1]"))] = (0.5, 0.75)
    gamma: Factor = 0.1

    def __call__(self, round_idx: int, num_rounds: int) -> float:
        """Factor of the learning rate in round ``round_idx`` (from 0) of ``num_rounds``."""
        over = (max(int(share_of(share, num_rounds)), 1) for share in self.shares)
        return self.gamma ** sum(round_idx >= milestone for milestone in over)


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up over ``warmup`` rounds, then half a cosine from 1 down to ``floor``."""

    floor: UnitInterval = 0.0
    warmup: Natural = 0

    def __call__(self, round_idx: int, num_rounds: int) -> float:
        """Factor of the learning rate in round ``round_idx`` (from 0) of ``num_rounds``."""
        if round_idx < self.warmup:
            return (round_idx + 1) / (self.warmup + 1)
        progress = (round_idx - self.warmup) / max(num_rounds - self.warmup, 1)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
