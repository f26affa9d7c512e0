"""Which values of a column each client stands for."""

import numpy as np
import pytest
import torch

from fedfeat.data import transforms
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import Parts
from fedfeat.data.partition.permuted import Permuted
from fedfeat.data.partition.schemes import Iid, Natural
from fedfeat.runs.client_values import FILE, write_client_values

WARDS = np.array(["b", "a", "c", "a", "b", "a"])
NATURAL = Natural(column="ward")


def federated(scheme, num_clients):
    examples = Examples(torch.zeros(6, 1, 2, 2, dtype=torch.uint8), torch.arange(6) % 2, {"ward": WARDS})
    dataset = Dataset("wards", examples, examples, ("0", "1"), (0.5,), (0.5,))
    labels = examples.labels.numpy()
    split = scheme.split(labels, labels, 2, num_clients, 0, examples.columns, examples.columns)
    return FederatedData(dataset, split, transforms.none())


@pytest.mark.parametrize(
    ("scheme", "partition"),
    [(NATURAL, {"column": "ward"}), (Permuted(inner=NATURAL), {"inner": {"column": "ward"}})],
)
def test_each_client_is_named_by_its_value(tmp_path, scheme, partition):
    write_client_values(tmp_path, partition, federated(scheme, 3))
    assert (tmp_path / FILE).read_text() == "client_id,ward,num_examples\n0,a,3\n1,b,2\n2,c,1\n"


def test_a_client_of_several_values_has_a_row_for_each(tmp_path):
    data = federated(NATURAL, 2)
    write_client_values(tmp_path, {"column": "ward"}, data)
    rows = [line.split(",") for line in (tmp_path / FILE).read_text().splitlines()[1:]]
    assert sorted(ward for _, ward, _ in rows) == ["a", "b", "c"]
    for k in range(2):
        own = WARDS[data.split.train.of(k)].tolist()
        assert {ward: int(count) for client, ward, count in rows if int(client) == k} == {
            w: own.count(w) for w in own
        }


def test_a_value_that_is_held_out_as_a_whole_has_a_row(tmp_path):
    data = federated(Permuted(inner=NATURAL), 3)
    train, val = Parts(np.array([1, 3, 4]), np.array([0, 2, 3, 3])), Parts(np.array([5, 0, 2]), np.arange(4))
    data.split = data.split._replace(train=train, val=val)
    write_client_values(tmp_path, {"column": "ward"}, data)
    assert (tmp_path / FILE).read_text() == "client_id,ward,num_examples\n0,a,2\n1,b,1\n2,c,0\n"


@pytest.mark.parametrize("partition", [{}, {"inner": None}, {"column": "age"}])
def test_a_partition_by_no_column_of_the_data_writes_nothing(tmp_path, partition):
    write_client_values(tmp_path, partition, federated(Iid(), 2))
    assert not [*tmp_path.iterdir()]
