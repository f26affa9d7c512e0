"""Server halves that share unlabelled inputs X_t with everyone, for a term of weight eta_t in the local objectives."""

import logging
import math
from typing import Annotated, Any, Literal

from torch import nn

from fedfeat.config.conditions import NotNegative, integer
from fedfeat.errors import ConfigError
from fedfeat.server import Server
from fedfeat.types import Setting, Source, Survey

_log = logging.getLogger("fedfeat")

EtaSchedule = Literal["sqrt", "linear", "const", "log"]
ETA_SCHEDULES = {"sqrt": math.sqrt, "linear": float, "const": lambda t: 1.0, "log": math.log1p}
"""Factor of eta_0 in round t, from 0; ``sqrt`` is that of dishamakhija/FedHeNN, without a term in the first round."""


def check_source(key: str, source: Source, setting: Setting) -> None:
    """Refuse a source of inputs that is empty.

    Raises:
        ConfigError: It is.
    """
    if source in setting.sources:
        return
    rule = "be another where partition.val_fraction is 0"
    if source == "public":
        rule = "be another without a public data set (data@public=..., or algorithm.public_share above 0)"
    raise ConfigError.rule(key, rule, source)


class SharedInputsServer(Server):
    """Share a set of unlabelled inputs in every round in which the clients' term has a weight.

    Args:
        rad_size: m, 5,000 in the paper and 1,000 in dishamakhija/FedHeNN.
        rad_source: Where X_t comes from, see `types.Source`; that code takes ``train_pool``.
        rad_augment: Whether X_t is augmented; in that code it is.
        eta0: Base weight of the term; .01 in that code, the paper's number is not known.
        eta_schedule: See `ETA_SCHEDULES`.
    """

    def __init__(
        self,
        rad_size: Annotated[int, integer(4)] = 5000,
        rad_source: Source = "train_pool",
        rad_augment: bool = False,
        eta0: NotNegative = 0.01,
        eta_schedule: EtaSchedule = "sqrt",
    ) -> None:
        self.eta0, self.eta_schedule = eta0, eta_schedule
        self.rad = Survey(rad_source, rad_size, augment=rad_augment, counted="none")

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Refuse a source that is empty, and warn of one that is tested on."""
        check_source("algorithm.server.rad_source", self.rad.source, setting)
        if self.rad.source == "test_unlabelled":
            _log.warning(
                "algorithm.server.rad_source=test_unlabelled trains on inputs of the test set, though without their "
                "labels: the accuracies of this run are not those on inputs that training has never seen."
            )

    def eta(self, round_idx: int) -> float:
        """Give eta_t."""
        return self.eta0 * ETA_SCHEDULES[self.eta_schedule](round_idx)

    def survey(self, state: Any, round_idx: int) -> Survey | None:
        """Share X_t in rounds whose term has a weight."""
        return self.rad if self.eta(round_idx) else None


def check_one_order(what: str, setting: Setting) -> None:
    """Refuse data that every client sees in an order of its own, where the server reads inputs itself.

    Args:
        what: What it takes of them.
        setting: How the rounds go.

    Raises:
        ConfigError: They are such data.
    """
    if setting.permuted:
        rule = f"be another for algorithm={setting.algorithm}, whose server takes {what} in an order that no client has"
        raise ConfigError.rule("partition", rule, "permuted")
