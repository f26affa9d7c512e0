"""A run read back from its directory: its configuration, its numbers, and its models, ready to predict."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import hydra
import torch
from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import adapt, become, make_module
from fedfeat.commands.auto_depth import stored_depth
from fedfeat.commands.loaded_model import Model
from fedfeat.commands.networks import build_networks
from fedfeat.commands.parts import build_client, build_data
from fedfeat.commands.reopen import read_checkpoint, read_config, stored_config
from fedfeat.config.arguments import check_targets
from fedfeat.config.made import made
from fedfeat.data.federated import FederatedData
from fedfeat.data.pipeline import InputPipeline
from fedfeat.data.pixels import in_order, pixel_permutation
from fedfeat.data.transforms import Transform
from fedfeat.errors import CheckpointError, ConfigError
from fedfeat.models.grouped import GroupSeparation
from fedfeat.rounds.tally import Meter
from fedfeat.runs.checkpoint import Checkpoint, CheckpointFolder, trusted_packages
from fedfeat.runs.client_store import ClientStore
from fedfeat.runs.data_facts import DataFacts
from fedfeat.runs.directory import finished_summary
from fedfeat.runs.metrics_table import read_metrics
from fedfeat.runs.weight_files import check_same_weights
from fedfeat.server import Server
from fedfeat.types import Networks, Site, Source

if TYPE_CHECKING:
    import pandas as pd


def load(run_dir: str | Path, device: str | torch.device = "cpu", trust: Sequence[str] = ()) -> "LoadedRun":
    """Open the directory of a run, finished or not. Nothing is trained, and the directory stays as it is.

    The data set is not needed, for the run directory says what a network has to know of it; but for runs older than
    ``data.json`` and for texts whose words have fixed vectors, the data set is loaded as the run did.

    Args:
        run_dir: Directory of the run.
        device: Where its models are.
        trust: What the run's configuration may name beside parts of fedfeat, of installed packages with configurations
            and of torch.optim: packages, modules, or single classes and functions (``docs/security.md``).

    Raises:
        CheckpointError: There is no run.
        ConfigError: Its configuration names something else, or the machine has no such device.
    """
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # as PyTorch says it, by what it was built for
        raise ConfigError.rule("device", "be one of this machine", str(device)) from error
    return LoadedRun(Path(run_dir), found, trust)


class LoadedRun:
    """What a run has left in its directory, see `load`.

    Attributes:
        run_dir: Its directory.
        config: Its resolved configuration.
    """

    def __init__(self, run_dir: Path, device: torch.device, trust: Sequence[str] = ()) -> None:
        self.run_dir, self._device = run_dir, device
        self.config = stored_config(run_dir)
        self._cfg, accepted = read_config(run_dir, trust)
        check_targets(accepted)
        self._trusted = trusted_packages(accepted)
        self._checkpoints = CheckpointFolder(run_dir / "checkpoints", trusted=self._trusted)
        self._store = ClientStore(run_dir / "clients", 2**62, self._trusted)

    @property
    def summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` holds; None for a run that is not finished."""
        return finished_summary(self.run_dir)

    @property
    def metrics(self) -> "pd.DataFrame":
        """``metrics.csv``: one row per evaluated round, NaN where a metric has no value."""
        return read_metrics(self.run_dir / "metrics.csv")

    @property
    def clients(self) -> "pd.DataFrame":
        """``clients.csv``: one row per client and evaluated round."""
        return read_metrics(self.run_dir / "clients.csv")

    @property
    def rounds(self) -> list[int]:
        """The rounds whose checkpoints are kept, oldest first."""
        return self._checkpoints.rounds()

    def model(self, round_idx: int | None = None) -> Model:
        """Give the server's model.

        Args:
            round_idx: Which of `rounds`; None is the newest.

        Raises:
            CheckpointError: There is no such checkpoint, or the method has no server's model.
        """
        payload = self._server.global_payload(self._checkpoint(round_idx).server_state)
        if payload is None:
            name = self.config["algorithm"]["name"]
            raise CheckpointError(
                f"model must be a client's (personal_model) for {name}, which has no server's."
            )
        module = self._module(None)
        become(module, Task(0, 0, payload, None), module.receive)
        return self._ready(module, module, partial(self._as_seen, None))

    def personal_model(self, client_id: int, round_idx: int | None = None) -> Model:
        """Give a client's own model: what it is between its turns, of the server's state and what the client keeps.

        Where a client keeps nothing of its network, as under FedAvg, that is the server's model.
        Where that takes the client's data, or inputs for static batch norm, the data set is loaded.

        Args:
            client_id: The client.
            round_idx: Which of `rounds`; None is the newest.

        Raises:
            CheckpointError: There is no such checkpoint or client.
        """
        if (
            type(client_id) is bool
            or not hasattr(client_id, "__index__")
            or not 0 <= client_id < self._facts.num_clients
        ):
            last = self._facts.num_clients - 1
            raise CheckpointError(f"client_id must be an integer from 0 to {last}, but it is {client_id!r}.")
        checkpoint = self._checkpoint(round_idx)
        self._store.restore(checkpoint.manifest)
        payload = self._server.own_payload(checkpoint.server_state, client_id)
        module = self._module(client_id, checkpoint.round_idx)
        become(
            module, Task(client_id, checkpoint.round_idx, payload, self._store.get(client_id)), module.recall
        )
        adapt(module, client_id, lambda: self._data, self._trainer, self.config["seed"])
        return self._ready(module, module.predict, partial(self._as_seen, client_id))

    def _checkpoint(self, round_idx: int | None) -> Checkpoint:
        return read_checkpoint(self._checkpoints, self._store, self.run_dir, round_idx)

    @cached_property
    def _facts(self) -> DataFacts:
        return DataFacts.read(self.run_dir) or DataFacts.of(self._data)

    @cached_property
    def _data(self) -> FederatedData:
        return build_data(self._cfg, self.config, self._device)

    @cached_property
    def _pipeline(self) -> InputPipeline:
        transform = made(self._cfg.data.transform, Transform, "data.transform")
        dtype = self._trainer.dtype
        return InputPipeline(self._facts.mean, self._facts.std, transform, self._device, dtype)

    @cached_property
    def _server(self) -> Server:
        def examples(source: Source, size: int, round_idx: int) -> tuple[Tensor, Tensor]:
            return self._data.shared_examples(source, size, self.config["seed"], round_idx)

        server = made(self._cfg.algorithm.server, Server, "algorithm.server")  # type: ignore[type-abstract]
        autocast = partial(self._trainer.autocast, self._device)
        read = partial(self._as_seen, None)
        server.setup(Site(self._networks, read, self._device, autocast, Meter().spend, examples))
        return server

    @cached_property
    def _trainer(self) -> LocalTrainer:
        # Compiling takes longer than what is asked of a model here.
        return replace(hydra.utils.instantiate(self._cfg.trainer, _convert_="all"), compile=False)

    @cached_property
    def _networks(self) -> Networks:
        def depth(structure: GroupSeparation, _: Any) -> GroupSeparation:
            return replace(structure, depth=cast(int, stored_depth(self.run_dir)))

        check_same_weights(self.run_dir, self.config)
        return build_networks(self._cfg, self.config, self._facts, depth)

    def _module(self, client_id: int | None, round_idx: int = 0) -> ClientModule:
        networks, build, seed = self._networks, build_client(self._cfg), self.config["seed"]
        key = None if client_id is None else networks.key(client_id, round_idx)
        module = make_module(build, networks, key, self._trainer, seed)
        module.plain = partial(self._as_seen, client_id)
        return module

    def _ready(
        self, module: ClientModule, logits: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]
    ) -> Model:
        size = self.config["federation"]["eval_batch_size"]
        return Model(module.to(self._device), self._facts.classes, logits, read, self._trainer, size)

    def _as_seen(self, client_id: int | None, inputs: Tensor) -> Tensor:
        """Give inputs as a client's network reads them, or the server's."""
        self._check_stored(inputs)
        x = self._pipeline.test(inputs)
        in_order_of_its_own = (
            client_id is not None or self.config["partition"].get("global_order") == "server"
        )
        if not self._facts.permuted or inputs.dtype != torch.uint8 or not in_order_of_its_own:
            return x
        order = pixel_permutation(self.config["seed"], client_id, x[0, 0].numel())
        return in_order(x, torch.from_numpy(order).to(x.device))

    def _check_stored(self, inputs: Tensor) -> None:
        """Refuse images of which a network would make something, or nothing, that has no meaning."""
        shape = self._facts.input_shape
        if len(shape) != 3 or inputs.is_floating_point():
            return
        if inputs.dtype != torch.uint8 or inputs.shape[1:] != shape:
            found = f"{str(inputs.dtype).removeprefix('torch.')} {tuple(inputs.shape)}"
            stored = ", ".join(map(str, shape))
            raise ConfigError(
                f"inputs must be uint8 (B, {stored}), as stored, or float, but they are {found}."
            )
