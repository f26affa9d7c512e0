"""Run directories as a report reads them, made without a run."""

import json

import numpy as np
import yaml


def make_run(path, seed=0, algorithm="fedavg", acc=0.5, reached=3, published=None, finished=True, **config):
    path.mkdir(parents=True)
    settings = {
        "seed": seed,
        "name": f"run-{seed}",
        "partition": {"seed": seed, "alpha": 0.5},
        "algorithm": {"name": algorithm, "client": {"_target_": f"x.{algorithm}"}},
        "paths": {"run": str(path)},
        "cache": f"{path}/cache",
        **config,
    }
    if published:
        settings["published"] = published
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    header = "round,cohort_size,global/acc,comm/total_bytes,compute/examples,time/total_s\n"
    lines = [f"{i},2,{acc * i / 4},{i * 1000},{i * 20},{i * 0.5}\n" for i in range(5)]
    (path / "metrics.csv").write_text(header + "".join(lines))
    cost = (
        {"rounds": reached, "bytes": reached * 1000, "examples": 20 * reached, "seconds": 1.0}
        if reached
        else None
    )
    summary = {"seed": seed, "algorithm": algorithm, "final": {"global/acc": acc}, "to_target": {"0.3": cost}}
    if finished:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def add_details(path, seed=0, clients=3, classes=("0", "1"), neurons=4):
    """Add what a page shows besides: data and split, accuracies of clients, an alignment map, what made the run."""
    counts = [[10 * (client + 1), seed] for client in range(clients)]
    facts = {"name": "toy", "input_shape": [1], "classes": [*classes], "class_counts": counts}
    (path / "data.json").write_text(json.dumps({**facts, "fingerprint": ["e" * 64, f"{seed}" * 64]}))
    header = "round,client_id,num_examples,global_acc,personal_acc\n"
    lines = [f"{r},{c},{sum(counts[c])},{(c + r) / 8},\n" for r in (0, 4) for c in range(clients)]
    (path / "clients.csv").write_text(header + "".join(lines))
    summary = json.loads((path / "summary.json").read_text())
    made = {"git_commit": "c" * 40, "versions": {"python": "3.12.1", "torch": "2.9"}, "seconds": 7.4}
    digests = {"config_sha256": "a" * 64, "weights_sha256": "b" * 64}
    (path / "summary.json").write_text(json.dumps(summary | made | digests))
    (path / "figures").mkdir()
    arrays = {
        "run/primary/conv1": (np.arange(clients * neurons).reshape(clients, neurons) % 3 - 1).astype(
            np.int16
        ),
        "run/clients": np.arange(clients),
        "run/metrics": np.array(["align/agreement", "align/agreement_conv1"]),
        "run/values": np.array([0.25, 0.5]),
    }
    np.savez(path / "figures" / "encoding_round_0004.npz", **arrays)
    return path
