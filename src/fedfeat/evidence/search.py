"""Searches: Optuna proposes trials and is told what their runs measured on validation data, never on test data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedfeat.config.explain import explain
from fedfeat.config.objective import validated_by
from fedfeat.errors import ConfigError
from fedfeat.evidence import stored
from fedfeat.evidence.lengths import Standing, standing
from fedfeat.evidence.processes import Process, end_run, failure, note, start_run
from fedfeat.evidence.study import Asked, propose, words_of
from fedfeat.evidence.tuning import validation_score
from fedfeat.runs.directory import fingerprint_of, is_locked
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.tables import METRICS, rows_so_far

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

TRIALS = "trials"
FAILED = "failed"
"""Attribute of a trial whose run has ended with an error: its sentence."""
_DATA = ("data", "public", "algorithm.public_share")
_GIVE_UP = 3  # failures without a trial that has succeeded


@dataclass
class Search:
    """Trials, each of them a run, for `processes.work`.

    Attributes:
        folder: Where the study and the runs lie.
        asked: What is searched.
        study: Optuna's.
        trials: How many there are to be in all.
        launcher: Hydra's launcher that starts each run; None is a process of this machine.
    """

    folder: Path
    asked: Asked
    study: Study
    trials: int
    launcher: str | None = None
    _cut: set[int] = field(default_factory=set)
    _again: set[int] = field(default_factory=set)
    _failures: int = 0
    _standings: dict[int, Standing | None] = field(default_factory=dict)

    def place(self, number: int) -> Path:
        """Give the folder of a trial's run."""
        return self.folder.absolute() / TRIALS / f"{number:04d}"

    def words(self, number: int) -> tuple[str, ...]:
        """Give the overrides of a trial's run."""
        return (*self.asked.words, *words_of(self.asked.space, self.trial(number).params))

    def standing(self, number: int) -> Standing | None:
        """Say how far a trial's run is; that of one which has ended is read once, for a display asks every second."""
        if number in self._standings:
            return self._standings[number]
        found = standing(self.place(number))
        if self.trial(number).state.is_finished():
            self._standings[number] = found
        return found

    def trial(self, number: int) -> FrozenTrial:
        """Give a trial."""
        return self.study.get_trials(deepcopy=False)[number]

    @property
    def gave_up(self) -> bool:
        """Whether trials have failed since this start, and none has ever succeeded."""
        states = {trial.state.name for trial in self.study.get_trials(deepcopy=False)}
        return self._failures >= _GIVE_UP and "COMPLETE" not in states

    def ready(self, running: Sequence[int]) -> int | None:
        """Give a trial that was interrupted, else a new one; None where there are enough."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.is_finished() or trial.number in running:
                continue
            if trial.params.keys() != self.asked.space.keys():
                self._tell(trial.number, "FAIL")  # cut while it was proposed
            elif not self._settled(trial.number):
                return trial.number
        counted = [trial for trial in self.study.get_trials(deepcopy=False) if trial.params]
        if len(counted) >= self.trials or self.gave_up:
            return None
        return propose(self.study, self.asked)

    def start(self, number: int) -> Process:
        """Start a trial's run, or go on with it."""
        return start_run(self.place(number), self.words(number), self.launcher)

    def look(self, running: Mapping[int, Process]) -> None:
        """Tell what the rounds so far have measured, and end runs that are worse than the median."""
        for number, process in running.items():
            if number not in self._cut and self._is_worse(number):
                self._cut.add(number)
                end_run(process, self.place(number), self.launcher)

    def refused(self, number: int, error: OSError) -> None:
        """Tell that a trial's run cannot be started."""
        # There may be no folder for a note.
        self._lost(number, explain(error))

    def ended(self, number: int, code: int) -> None:
        """Tell what a run has come to; one that goes on elsewhere, or was cut, is taken up again."""
        place = self.place(number)
        if stored.is_finished(place):
            self._check_examples(place)
            score = validation_score(place)
            if not math.isfinite(score):
                # As bad as a run can be, which Optuna has to know as a number.
                self._open(number).set_user_attr(FAILED, "its validation accuracy is not finite")
                score = 0.0
            self._complete(number, score)
        elif number in self._cut:
            self._tell(number, "PRUNED")
            note(place, f"pruned after round {self.trial(number).last_step}")
        elif not is_locked(place) and (code or number in self._again):
            self._failed(number, f"exit {code}: {failure(place)}")
        else:
            self._again.add(number)

    def _check_examples(self, place: Path) -> None:
        """Refuse to compare runs on other examples, unless data are what is tried."""
        completed = [
            trial.number for trial in self.study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"
        ]
        before = next(filter(None, (fingerprint_of(self.place(number)) for number in completed)), ())
        found, tried = fingerprint_of(place), [key for key in self.asked.space if key.startswith(_DATA)]
        if before and found and before[0] != found[0] and not tried:
            rule = "be a new folder for other data than those of its trials"
            raise ConfigError(f"--out must {rule}, but the examples of {place} are not those.")

    def _settled(self, number: int) -> bool:
        """Tell what has become of an interrupted trial whose run has ended, or needs not go on."""
        if is_locked(self.place(number)):
            return False
        if not stored.is_finished(self.place(number)):
            if not self._is_worse(number):
                return False
            self._cut.add(number)
        self.ended(number, 0)
        return True

    def _is_worse(self, number: int) -> bool:
        """Report the rounds so far; whether the last shows a trial below the median."""
        return self._reported(number).should_prune()

    def _complete(self, number: int, score: float) -> None:
        """Tell a trial's score, and first its rounds that no look has seen, by which later ones are cut short."""
        self._reported(number)
        self._tell(number, "COMPLETE", score)

    def _reported(self, number: int) -> Trial:
        """Report the rounds of a trial that are not known yet."""
        frozen, trial = self.trial(number), self._open(number)
        for round_idx, value in validated_rounds(self.place(number)):
            if round_idx not in frozen.intermediate_values:
                trial.report(value, round_idx)
        return trial

    def _failed(self, number: int, sentence: str) -> None:
        # That is the fault of its values, which Optuna has to know as bad ones.
        if has_diverged(self.place(number)):
            self._open(number).set_user_attr(FAILED, sentence)
            self._complete(number, 0.0)
        else:
            self._lost(number, sentence)
        note(self.place(number), sentence)

    def _lost(self, number: int, sentence: str) -> None:
        self._open(number).set_user_attr(FAILED, sentence)
        self._failures += 1
        self._tell(number, "FAIL")

    def _open(self, number: int) -> Trial:
        from optuna.trial import Trial

        return Trial(self.study, self.trial(number)._trial_id)

    def _tell(self, number: int, state: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        self.study.tell(number, value, TrialState[state])


def validated_rounds(place: Path) -> list[tuple[int, float]]:
    """Give a run's accuracy on validation data by round, so far; of what is measured once, in the end, nothing."""
    rows = rows_so_far(place / METRICS)
    if not rows:
        return []
    target = stored.federation(place)["target_metric"]
    name = validated_by(rows[-1], target)
    if name is None or (target or "").startswith("final_all/"):
        return []
    cells = [(int(row["round"]), row[name]) for row in rows if row[name]]
    numbers = [(round_idx, float(text)) for round_idx, text in cells if round_idx > 0]
    return [(round_idx, value if math.isfinite(value) else 0.0) for round_idx, value in numbers]
