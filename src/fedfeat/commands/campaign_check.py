"""What a campaign's runs would be refused for when their turn comes, perhaps in days, said before the first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hydra.utils import instantiate
from omegaconf import DictConfig

from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.commands.python import tried
from fedfeat.errors import ConfigError, UserError
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.queue import Queue, program_of
from fedfeat.evidence.tuning import no_validation


def check_composed(queue: Queue) -> list[str]:
    """Refuse a campaign with a run that does not compose, or with a program that does not exist.

    Runs that differ by their seed alone are composed once, and not at all where one of them has begun with these words.
    One that has begun with others is refused.

    Returns:
        A sentence for each precision in which this machine would be slow, with the first run that has it; none where a
        launcher has other machines.

    Raises:
        ConfigError: A sentence for each mistake, with the first run that has it.
    """
    _check_programs(queue)
    tuning = {study.tuned.study for study in queue.campaign.studies.values() if study.tuned}
    more = [*queue.extra, *([f"hydra/launcher={queue.launcher}"] if queue.launcher else [])]
    found, slow, altered = dict[str, str](), dict[str, str](), set[Cell]()
    for cell in queue.open():
        try:
            queue.check(cell)
        except ConfigError as error:
            altered.add(cell)
            found.setdefault(str(error), cell.name)
    for cell in _kinds(queue, altered):
        try:
            cfg = _check([*queue.campaign.words_of(cell), *more], cell.study in tuning)
            if queue.launcher is None and (said := _emulated(cfg)):
                slow.setdefault(said, cell.name)
        except UserError as error:
            found.setdefault(str(error), cell.name)
    if found:
        raise ConfigError("\n".join(f"{name}: {said}" for said, name in found.items()))
    return [f"{name}: {said}" for said, name in slow.items()]


def _check(words: Sequence[str], tunes: bool) -> DictConfig:
    cfg, config = tried(words)
    if tunes and not config["partition"]["val_fraction"]:
        raise no_validation(config["partition"]["val_fraction"])
    return cfg


def _emulated(cfg: DictConfig) -> str:
    trainer: LocalTrainer = instantiate(cfg.trainer, _convert_="all")
    return trainer.emulated(trainer.device())


def _check_programs(queue: Queue) -> None:
    for study in queue.campaign.ordered():
        for arm, command in study.then.items():
            if program_of(command[0]) is None:
                raise ConfigError.rule(f"studies.{study.name}.then.{arm}", "begin with a program", command[0])


def _kinds(queue: Queue, altered: Collection[Cell]) -> list[Cell]:
    """Give a run of each kind, whatever its seed, of which none has begun with the words that it has today."""
    begun, kinds = set[Cell](), dict[Cell, Cell]()
    for cell in queue.campaign.cells():
        kind = cell._replace(seed=0)
        kinds.setdefault(kind, cell)
        accepted = queue.has_begun(cell) and queue.words(cell) is not None and cell not in altered
        if queue.settled(cell) or accepted:
            begun.add(kind)
    return [cell for kind, cell in kinds.items() if kind not in begun]
