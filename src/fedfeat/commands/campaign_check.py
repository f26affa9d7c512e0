"""What a campaign's runs would be refused for when their turn comes, perhaps in days, said before the first."""

from __future__ import annotations

from collections.abc import Sequence

from fedfeat.commands.python import tried
from fedfeat.errors import ConfigError, UserError
from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.queue import Queue, program_of
from fedfeat.evidence.stored import check_words
from fedfeat.evidence.tuning import no_validation


def check_composed(queue: Queue) -> None:
    """Refuse a campaign with a run that does not compose, or with a program that does not exist.

    Runs that differ by their seed alone are composed once, and not at all where one of them has begun with these words.
    One that has begun with others is refused.

    Raises:
        ConfigError: A sentence for each mistake, with the first run that has it.
    """
    _check_programs(queue)
    tuning = {study.tuned.study for study in queue.campaign.studies.values() if study.tuned}
    more = [*queue.extra, *([f"hydra/launcher={queue.launcher}"] if queue.launcher else [])]
    found = dict[str, str]()
    for cell in queue.open():
        if said := _altered(queue, cell):
            found.setdefault(said, cell.name)
    for cell in _kinds(queue):
        try:
            _check([*queue.campaign.words_of(cell), *more], cell.study in tuning)
        except UserError as error:
            found.setdefault(str(error), cell.name)
    if found:
        raise ConfigError("\n".join(f"{name}: {said}" for said, name in found.items()))


def _check(words: Sequence[str], tunes: bool) -> None:
    _, config = tried(words)
    if tunes and not config["partition"]["val_fraction"]:
        raise no_validation(config["partition"]["val_fraction"])


def _check_programs(queue: Queue) -> None:
    for study in queue.campaign.ordered():
        for arm, command in study.then.items():
            if program_of(command[0]) is None:
                raise ConfigError.rule(f"studies.{study.name}.then.{arm}", "begin with a program", command[0])


def _kinds(queue: Queue) -> list[Cell]:
    """Give a run of each kind, whatever its seed, of which none has begun."""
    begun, kinds = set[Cell](), dict[Cell, Cell]()
    for cell in queue.campaign.cells():
        kind = cell._replace(seed=0)
        kinds.setdefault(kind, cell)
        if queue.settled(cell) or (_has_begun(queue, cell) and not _altered(queue, cell)):
            begun.add(kind)
    return [cell for kind, cell in kinds.items() if kind not in begun]


def _has_begun(queue: Queue, cell: Cell) -> bool:
    """Whether a run was accepted, and the campaign has words for it today."""
    return (queue.runs / cell.name / "config.yaml").exists() and queue.words(cell) is not None


def _altered(queue: Queue, cell: Cell) -> str:
    """Say with which other words than today's a run has begun; an empty text where it has not."""
    if not _has_begun(queue, cell):
        return ""
    try:
        check_words(queue.runs / cell.name, queue.words(cell) or ())
    except ConfigError as error:
        return str(error)
    return ""
