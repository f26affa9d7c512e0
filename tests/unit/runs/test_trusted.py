"""Whose records a checkpoint may hold: those of the packages that the run's method comes from."""

from typing import NamedTuple

import pytest
import torch

from fedfeat.errors import CheckpointError
from fedfeat.runs.checkpoint import trusted_packages
from fedfeat.tree import flatten, unflatten


class State(NamedTuple):
    """A record of a package that is not fedfeat's."""

    weights: torch.Tensor


def config(**algorithm):
    return {"algorithm": {"name": "x", "pooled": False, **algorithm}}


def test_packages_are_those_of_the_targets_of_both_halves():
    client = {
        "_target_": "hers.method.Client",
        "_partial_": True,
        "halves": [{"_target_": "third.Half"}, "text"],
    }
    server = {
        "_target_": "fedfeat.algorithms.fedma.FedMAServer",
        "average": {"_target_": "other.deep.Server"},
    }
    assert set(trusted_packages(config(client=client, server=server))) == {
        "fedfeat",
        "hers",
        "third",
        "other",
    }
    own = {"_target_": "fedfeat.client.ClientModule"}
    assert trusted_packages(config(client=own, server=own)) == ("fedfeat",)


def test_targets_of_other_groups_are_not_trusted():
    found = trusted_packages(
        {"data": {"loader": {"_target_": "evil.load"}}, **config(client={"_target_": "a.B"})}
    )
    assert found == ("fedfeat", "a")


def test_records_of_these_packages_alone_come_back():
    skeleton, named = flatten({"state": State(torch.ones(2))})
    client = {"_target_": f"{__name__}.Client"}
    found = unflatten(skeleton, named, trusted_packages(config(client=client)))
    assert type(found["state"]) is State
    with pytest.raises(
        CheckpointError, match=rf"^The class {__name__}:State must come from fedfeat or a to be read back"
    ):
        unflatten(skeleton, named, trusted_packages(config(client={"_target_": "a.B"})))


def test_a_record_runs_no_command():
    with pytest.raises(CheckpointError, match=r"fedfeat\.__main__:X must come from fedfeat to be read back"):
        unflatten({"record": ["fedfeat.__main__:X", []]}, {})


def test_libraries_of_a_method_lend_no_records():
    half = {"_target_": "hydra.utils.get_class", "path": "hers.method.Client"}
    client = {"_target_": "fedfeat.client.joined", "halves": [half]}
    server = {"_target_": "theirs.Server", "optimizer": {"_target_": "torch.optim.SGD"}}
    assert set(trusted_packages(config(client=client, server=server))) == {"fedfeat", "hers", "theirs"}
