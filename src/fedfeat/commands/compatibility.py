"""Whether the parts of an experiment fit each other; asked before anything is written."""

import logging

from fedfeat.client import ClientModule
from fedfeat.data.federated import FederatedData
from fedfeat.errors import ConfigError, UserError
from fedfeat.rounds.plan import Plan
from fedfeat.server import Server
from fedfeat.types import Networks

_log = logging.getLogger("fedfeat")


def check_turns(
    module: ClientModule, server: Server, plan: Plan, algorithm: str, keep_optimizer: bool
) -> None:
    """Refuse a course of the rounds that a method cannot work with.

    Args:
        module: The client half.
        server: The server half.
        plan: How the rounds go.
        algorithm: Name of the method.
        keep_optimizer: Whether optimizer state survives from a client's turn to its next.

    Raises:
        ConfigError: The first key that does not fit.
    """
    if server.needs_everyone and plan.cohort_size < plan.num_clients:
        rule = f"be null or all {plan.num_clients} clients for algorithm={algorithm}"
        raise ConfigError.rule("federation.cohort_size", rule, plan.cohort_size)
    if server.needs_everyone and plan.drop_stragglers and plan.straggler_fraction:
        rule = f"be partial for algorithm={algorithm}, which needs all clients in every round"
        raise ConfigError.rule("federation.straggler_policy", rule, "drop")
    if module.resets_optimizer and keep_optimizer:
        raise ConfigError.rule("federation.opt_state", f"be reset for algorithm={algorithm}", "keep")
    _check_passes(getattr(module, "rounds_per_pass", 1), plan.num_rounds, algorithm)
    head_epochs = getattr(module, "head_epochs", None)
    if head_epochs is not None and plan.local_epochs is not None and plan.local_epochs <= head_epochs:
        _log.warning(
            "algorithm=%s trains heads alone: federation.local_epochs=%g is not above algorithm.client.head_epochs=%d.",
            algorithm, plan.local_epochs, head_epochs,
        )  # fmt: skip


def _check_passes(rounds: int, num_rounds: int, algorithm: str) -> None:
    """Refuse rounds that are not even one pass over the model, and warn of those after the last whole one."""
    if 0 < num_rounds < rounds:
        rule = f"be 0 or at least {rounds} for algorithm={algorithm}, a round for each layer of the model"
        raise ConfigError.rule("federation.num_rounds", rule, num_rounds)
    if left := num_rounds % rounds:
        _log.warning(
            "algorithm=%s takes %d rounds for a pass over the model: the last %d of federation.num_rounds=%d are lost.",
            algorithm, rounds, left, num_rounds,
        )  # fmt: skip


def check_halves(module: ClientModule, server: Server, networks: Networks, data: FederatedData) -> None:
    """Refuse a client half and a server half that do not fit each other, the networks or the data.

    Args:
        module: The client half around the server's network.
        server: The server half.
        networks: Which network each client runs.
        data: The federation's data.

    Raises:
        UserError: What does not fit.
    """
    if module.payload_type is not server.payload_type:
        raise UserError(
            f"algorithm/client and algorithm/server must exchange the same payload, but {type(module).__name__} speaks "
            f"{module.payload_type.__name__} and {type(server).__name__} speaks {server.payload_type.__name__}."
        )
    if module.fixed_inputs and data.augmented:
        raise ConfigError.rule(
            "algorithm.client.cache_eg", "be false for data that are augmented (data/transform)", True
        )
    server.check(module.model)
    if module.personal_keys and server.needs_whole_model:
        raise UserError(
            f"algorithm.client.personal must be [] for {type(server).__name__}, which takes whole networks, but it "
            f"keeps {len(module.personal_keys)} tensors back, {module.personal_keys[0]} first."
        )
    unequal = any(networks.key(k) is not None for k in range(data.num_clients))
    if unequal and module.shared_keys and not server.accepts_unequal:
        raise UserError(
            f"algorithm/server must average unequal networks where clients have them (structure.trim=true or a pool), "
            f"but {type(server).__name__} cannot."
        )
