"""A run of a few rounds for every logger."""

import csv

from fedfeat.loggers.base import RunInfo
from fedfeat.runs.records import ClientRow, RoundRecord
from fedfeat.runs.run_words import RunWords

SUMMARY = {
    "seed": 3,
    "algorithm": "fed2",
    "num_rounds": 4,
    "final": {"global/acc": 0.4, "comm/total_bytes": 2_500_000},
    "best_val": {"round": 2, "global/acc": 0.3},
    "config_sha256": "c",
    "git_commit": "g",
    "to_target": {"0.3": {"rounds": 3, "bytes": 1500, "examples": 9, "seconds": 1.5}, "0.9": None},
}


WORDS = RunWords(
    label="fed2, digits, n_classes, seed=3",
    kind="sweep",
    tags=("fed2", "fed2/t1_vgg9"),
    facts={"method": "fed2", "data": "digits", "groups": 10, "seed": 3, "published": {"global/acc": 0.9}},
)


def record(round_idx, evaluated=True, num_clients=2, **metrics):
    clients = tuple(
        ClientRow(k, 10 + k, global_acc=0.1 * round_idx, train_loss=1 / 3) for k in range(num_clients)
    )
    values = {"global/acc": round_idx / 10, "train/loss": 1 / (1 + round_idx), **metrics}
    return RoundRecord(round_idx, (4, 7, 9), values, evaluated, clients)


def run(path, resumed=None, rounds=4):
    return RunInfo(
        path, "digits-fed2", "sweep", {"seed": 3, "data": {"name": "digits"}}, rounds, resumed, WORDS
    )


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write(logger, path, rounds, resumed=None, finish=True):
    logger.start(run(path, resumed))
    for entry in rounds:
        logger.log(entry)
    if finish:
        logger.finish(SUMMARY)
        logger.close()
