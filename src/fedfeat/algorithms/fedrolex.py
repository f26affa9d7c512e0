"""FedRolex, HeteroFL with rolling windows.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022, Alg. 1.

    server: as HeteroFL's (algorithms/heterofl.py), but in round j a client of level r has of a layer of C channels
                j mod C, (j + 1) mod C, ..., (j + ceil(r C) - 1) mod C
            so that in C rounds each of them is trained alike, at whatever level
    client: HeteroFL's
"""

from torch import nn

from fedfeat.algorithms.heterofl import HeteroFLServer
from fedfeat.errors import ConfigError
from fedfeat.types import Setting


class FedRolexServer(HeteroFLServer):
    """HeteroFL's, with windows that go on by one channel in every round."""

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Refuse clients whose optimizer remembers steps of other channels."""
        super().check(model, setting)
        if setting.keeps_optimizer:
            rule = f"be reset for algorithm={setting.algorithm}, where clients have other channels in every round"
            raise ConfigError.rule("federation.opt_state", rule, "keep")

    def start(self, round_idx: int) -> int:
        """Give the round."""
        return round_idx
