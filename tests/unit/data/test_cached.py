"""Features for inputs: each example passes once, and what is on disk is taken only where it is the same."""

import logging
from dataclasses import replace

import pytest
import torch

from fedfeat.data import transforms
from fedfeat.data.cached import with_features
from fedfeat.data.digits import digits
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.schemes import Iid
from fedfeat.errors import DataError
from fedfeat.types import Survey

KEY = {"weights": "a"}


@pytest.fixture(scope="module")
def federation():
    dataset = digits(num_train=700, num_test=60)
    public = replace(dataset, name="public")
    args = (dataset.train.labels.numpy(), dataset.test.labels.numpy(), 10, 3, 0)
    split = Iid(val_fraction=0.2).split(*args, dataset.train.columns, dataset.test.columns)
    return FederatedData(dataset, split, transforms.none(), public=public)


class Encoder:
    """Gives sums of rows, and counts what has passed."""

    def __init__(self):
        self.seen = []

    def __call__(self, inputs):
        self.seen.append(len(inputs))
        return inputs.sum(2).flatten(1)


def test_batches_are_those_of_the_encoder_on_the_inputs_of_the_same_address(federation, tmp_path):
    encode = Encoder()
    found = with_features(federation, encode, KEY, tmp_path)
    assert encode.seen == [
        500,
        200,
        60,
    ]  # training and test examples in parts; the public ones are the former
    address = (1, 7, 2, 16)
    for (z, y), (x, labels) in zip(
        found.train_batches(*address), federation.train_batches(*address), strict=True
    ):
        assert torch.equal(y, labels)
        assert torch.equal(z, encode(x))
    for name, arguments in (
        ("labelled_batches", (2, 30)),
        ("val_batches", (30,)),
        ("test_batches", (torch.arange(40), 16)),
    ):
        ours, theirs = (list(getattr(data, name)(*arguments)) for data in (found, federation))
        assert torch.equal(torch.cat([z for z, _ in ours]), encode(torch.cat([x for x, _ in theirs])))
        assert torch.equal(torch.cat([y for _, y in ours]), torch.cat([y for _, y in theirs]))
    for source in ("train_pool", "test_unlabelled", "heldout", "public"):
        z, x = (data.unlabelled(Survey(source, 20), 0, 3) for data in (found, federation))
        assert torch.equal(found.plain(z), encode(federation.plain(x)))
    assert found.fingerprint == federation.fingerprint
    assert found.dataset.input_shape == (1, 8, 8)  # whatever is made of the data afterwards has the images
    assert torch.equal(next(iter(federation.val_batches(5)))[0], next(iter(federation.val_batches(5)))[0])
    assert federation._train.inputs.dtype == torch.uint8


def test_a_second_time_they_are_read(federation, tmp_path, caplog):
    first = with_features(federation, Encoder(), KEY, tmp_path)
    again = Encoder()
    with caplog.at_level(logging.INFO, logger="fedfeat"):
        second = with_features(federation, again, KEY, tmp_path)
    assert again.seen == []
    assert torch.equal(first._train.inputs, second._train.inputs)
    # 8 numbers of four bytes each.
    assert "Features of 700 examples, 8 each, 0.0 MB: found in " in caplog.text
    # The public examples are the training examples, and have one file.
    files = sorted((tmp_path / "features").iterdir())
    assert [file.suffix for file in files] == [".safetensors"] * 2
    assert sum(file.stat().st_size for file in files) < 760 * 8 * 4 + 2 * 1000


@pytest.mark.parametrize("what", ["weights", "normalisation", "examples", "precision"])
def test_other_weights_inputs_and_types_have_other_files(what, federation, tmp_path):
    with_features(federation, Encoder(), KEY, tmp_path)
    key, other = KEY, federation
    if what == "weights":
        key = {"weights": "b"}
    else:
        dataset = federation.dataset
        if what == "examples":
            inputs = dataset.train.inputs.clone()
            inputs[-1, 0, 7, 7] += 1
            dataset = replace(dataset, train=replace(dataset.train, inputs=inputs))
        transform = transforms.pfllib() if what == "normalisation" else transforms.none()
        dtype = torch.float64 if what == "precision" else torch.float32
        other = FederatedData(dataset, federation.split, transform, dtype=dtype)
    again = Encoder()
    with_features(other, again, key, tmp_path)
    # The test set is the same, and found, where the training set alone has changed.
    assert sum(again.seen) == (700 if what == "examples" else 760)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_damaged_features_are_made_again(damage, federation, tmp_path, caplog):
    first = with_features(federation, Encoder(), KEY, tmp_path)
    path = max((tmp_path / "features").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes({"flipped": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[damage])
    again = Encoder()
    found = with_features(federation, again, KEY, tmp_path)
    assert again.seen == [500, 200]
    assert torch.equal(found._train.inputs, first._train.inputs)
    assert "must match their digest, but they have been altered: they are made again." in caplog.text
    with_features(federation, again, KEY, tmp_path)
    assert again.seen == [500, 200]


def test_a_cache_that_cannot_be_written_is_a_sentence(federation, tmp_path):
    (tmp_path / "features").write_text("in the way")
    sentence = r"^paths\.cache must be writable, to keep features in .*features, but it is not: "
    with pytest.raises(DataError, match=sentence):
        with_features(federation, Encoder(), KEY, tmp_path)
