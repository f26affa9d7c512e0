"""FedBABU: Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022, Alg. 1.

    server: theta_body, theta_head <- initial model;  each round: S <- sample clients
            for k in S:  send theta_body;  receive theta_body,k
            theta_body <- sum_k n_k / (sum_j n_j) * theta_body,k                       theta_head is never changed
    client: for E epochs:  step on theta_body with theta_head fixed;  return theta_body,k
    after the last round, every client:  tau epochs from (theta_body, theta_head) on all of it, on body or on head

Everyone makes theta_head from the seed, so it crosses no wire, and no optimizer has it: neither momentum nor weight
decay can move it. The fine-tuning is ``federation.final_epochs``; it gives the personal models (``final_all/*``).
"""

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from fedfeat.client import ClientModule
from fedfeat.config.conditions import Positive, Text
from fedfeat.errors import ConfigError
from fedfeat.models.policy import DROPPED, PERSONAL, keys_with, selected, sent_keys
from fedfeat.params import copy_into, snapshot
from fedfeat.types import Setting, Turn


class FedBABUClient(ClientModule):
    """FedAvg's client with a part that has its common initial value as long as there are rounds.

    Args:
        fixed: theta_head, by the selectors of ``personal``.
        fine_tune: What the fit after the last round trains: ``full``, ``body`` or ``head``.
        fine_tune_lr: Its learning rate; None is that of the last round. The paper's code has .001 after rounds of .1
            (two decays by .1); a body that has grown under a fixed head needs a small one.
        arguments: As in `ClientModule`.
    """

    apart = None  # what trains in a fit is the same for everyone

    def __init__(
        self,
        *,
        fixed: Sequence[Text] = ("last",),
        fine_tune: Literal["full", "body", "head"] = "full",
        fine_tune_lr: Positive | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.fine_tune, self.fine_tune_lr = fine_tune, fine_tune_lr
        head = selected(self.model, fixed, "algorithm.client.fixed")
        head_keys = [key for key in self.policies if key in head]
        self.policies |= dict.fromkeys(head_keys, DROPPED)
        self.shared_keys, self.personal_keys = sent_keys(self.policies), keys_with(self.policies, PERSONAL)
        self._initial_personal = snapshot(self.model, self.personal_keys)
        self._initial_head = snapshot(self.model, head_keys)
        self._trainable: list[tuple[nn.Parameter, bool]] = [
            (parameter, name in head)
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]
        if all(is_head for _, is_head in self._trainable):
            raise ConfigError.rule("algorithm.client.fixed", "leave something that trains", list(fixed))
        if fine_tune == "head" and not any(is_head for _, is_head in self._trainable):
            raise ConfigError.rule(
                "algorithm.client.fine_tune", "be full or body where the head is frozen", "head"
            )
        self._train(body=True, head=False)

    def check(self, setting: Setting) -> None:
        """Refuse optimizer state that outlasts a turn.

        Raises:
            ConfigError: It would be that of other parameters in the fine-tuning.
        """
        super().check(setting)
        if setting.keeps_optimizer:
            rule = f"be reset for algorithm={setting.algorithm}, whose fine-tuning trains other parameters"
            raise ConfigError.rule("federation.opt_state", rule, "keep")

    def receive(self, payload: Any, memory: Any) -> None:
        """Become one client: the received body and the common initial head, whatever a fine-tuning has left there."""
        super().receive(payload, memory)
        copy_into(self.model, self._initial_head)

    def begin_turn(self, turn: Turn) -> None:
        """Choose what trains, and at which rate."""
        if turn.final and self.fine_tune_lr is not None:
            self.lr = self.fine_tune_lr
        tuned = self.fine_tune if turn.final else "body"
        self._train(body=tuned != "head", head=tuned != "body")

    def _train(self, body: bool, head: bool) -> None:
        for parameter, is_head in self._trainable:
            parameter.requires_grad_(head if is_head else body)
