"""fedfeat as one contestant of a side-by-side comparison of simulators.

Follows the protocol of the comparison's ``common`` module, which has to be importable: it gives the workload, the data,
the first weights and the clients of each round, and a recorder that takes the time after every round. A round is
everything that our loop does in it: sampling, broadcast, local fits through Lightning, aggregation and accounting.

    python bench_runner.py --workload W2 --executor processes --threads 1
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Recorder, build_model, count_steps, get_workload, make_data, parse_args

import fedfeat
from fedfeat.data import transforms
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts
from fedfeat.rounds.experiment import Experiment

MODELS = {
    "W1": ["model=mlp", "model.hidden=[64]"],
    "W2": ["model=mnist_cnn", "model.dropout=0"],
    # None of the comparison's networks has dropout.
    "W3": ["model=vgg9", "model.conv_dropout=0", "model.dropout=0"],
    "W4": ["model=pfl_cnn", "model.dropout=0", "model.input_dropout=0"],
}


def overrides(w: Any, args: Any) -> list[str]:
    """Configuration of a workload."""
    processes = [f"executor.num_processes={args.procs}"] if args.executor == "processes" else []
    return [
        "data=synthetic", "partition=iid", "algorithm=fedavg", *MODELS[w.name], f"executor={args.executor}", *processes,
        f"federation.num_clients={w.clients}", f"federation.cohort_size={w.per_round}",
        f"federation.batch_size={w.batch}", f"federation.local_epochs={w.epochs}",
        f"federation.num_rounds={w.rounds + 1}", "federation.eval_every=100000",
        f"optimizer.lr={w.lr}", "optimizer.momentum=0", "optimizer.weight_decay=0",
        f"trainer={'cpu_bf16' if args.bf16 else 'cpu'}", f"trainer.num_threads={args.threads}",
        f"trainer.channels_last={bool(args.channels_last) or bool(args.bf16)}", *args.more.split(),
    ]  # fmt: skip


def federated(w: Any) -> FederatedData:
    """The comparison's data: client c owns the rows from c * samples on; a few of them stand in for a test set."""
    x, y = make_data(w)
    few = Examples(x[: w.batch], y[: w.batch])
    classes = tuple(str(label) for label in range(w.classes))
    dataset = Dataset(w.name, Examples(x, y), few, classes, (0.0,) * w.shape[0], (1.0,) * w.shape[0])
    offsets = np.arange(w.clients + 1) * w.samples
    nothing = Parts(np.zeros(0, dtype=np.int64), np.zeros(w.clients + 1, dtype=np.int64))
    split = ClientSplit(Parts(np.arange(len(y)), offsets), nothing, IndexTestParts(nothing))
    return FederatedData(dataset, split, transforms.none())


@dataclass(frozen=True)
class Given:
    """A sampler that has the clients of every round."""

    schedule: Sequence[Sequence[int]]

    def cohort(self, seed: int, round_idx: int, *_: Any) -> tuple[int, ...]:
        """Give the clients of a round."""
        return tuple(sorted(self.schedule[round_idx]))


def build(w: Any, args: Any, folder: Path) -> Experiment:
    """Our side, as a run would build it, on the comparison's data and clients."""
    places = [f"paths.root={folder}", f"hydra.run.dir={folder}"]
    experiment = fedfeat.build([*overrides(w, args), *places], federated(w))
    experiment.plan = replace(experiment.plan, sampler=Given(w.schedule()))
    return experiment


def main() -> None:
    """Run the workload and print the recorder's line."""
    args = parse_args("fedfeat", executor="serial", procs=2, threads=1, bf16=0, channels_last=0, more="")
    w = get_workload(args.workload, args.rounds)
    recorder = Recorder(args, w)
    if args.check:
        count_steps(w)
        # A check compares weights, so every contestant takes a client's examples in their order.
        torch.randperm = lambda n, **_: torch.arange(n)
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(w, args, Path(folder))
        start, _ = experiment.begin()
        first = [p.detach().clone() for p in build_model(w).parameters()]
        assert [p.shape for p in first] == [p.shape for p in start.state.params.values()]
        state = start.state._replace(params=dict(zip(start.state.params, first, strict=True)))
        rounds = experiment.rounds(start._replace(state=state))
        next(rounds)  # the initial model, evaluated
        recorder.start()
        for _ in range(w.rounds):
            progress, _record = next(rounds)
            recorder.round_done()
        experiment.executor.close()
    recorder.finish(list(progress.state.params.values()), executor=args.executor)


if __name__ == "__main__":
    main()
