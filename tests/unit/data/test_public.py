"""Public examples: a share that nobody holds, another data set, and none that is tested on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedfeat.commands.parts import build_data
from fedfeat.config.choices import CONFIGS
from fedfeat.data.digits import digits
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.public import public_examples, set_aside, with_public
from fedfeat.errors import ConfigError, DataError
from fedfeat.types import Vocabulary


def rows(examples):
    return {row.tobytes() for row in examples.inputs.numpy()}


def images(numbers, size=2, dtype=torch.uint8, name="full", tests=(200, 201)):
    """Image i is full of i; of two classes in turn."""

    def full(values):
        pixels = torch.tensor(values, dtype=dtype)[:, None, None, None].expand(-1, 1, size, size)
        return Examples(pixels.contiguous(), torch.arange(len(values)) % 2)

    return Dataset(name, full(list(numbers)), full(list(tests)), ("a", "b"), (0.2,), (0.5,))


def test_a_share_of_every_class_is_taken_and_nobodys():
    whole = digits()
    left, aside = set_aside(whole, 0.2, seed=0)
    counts = [np.bincount(one.train.labels, minlength=10) for one in (whole, left, aside)]
    assert counts[2].tolist() == [int(0.2 * count) for count in counts[0]]
    assert (counts[1] + counts[2]).tolist() == counts[0].tolist()
    assert left.test is aside.test is whole.test
    assert (left.mean, left.std) == (whole.mean, whole.std)
    assert not rows(aside.train) & rows(left.train)
    assert not rows(aside.train) & rows(whole.test)
    again, other = set_aside(whole, 0.2, seed=0)[1], set_aside(whole, 0.2, seed=1)[1]
    assert torch.equal(again.train.inputs, aside.train.inputs)
    assert rows(other.train) != rows(aside.train)


def test_another_data_set_leaves_no_share_to_be_taken():
    own, other = images(range(10)), images(range(50, 60))
    assert with_public(own, other, 0.5, 0) == (own, other)
    assert with_public(own, None, None, 0) == (own, None)
    left, aside = with_public(own, None, 0.5, 0)
    assert (len(left.train), len(aside.train)) == (6, 4)


def test_a_share_of_nothing_is_refused():
    with pytest.raises(DataError, match=r"algorithm\.public_share must be .* of full, but it is 0\.1\.$"):
        set_aside(images(range(10)), 0.1, 0)


def test_what_is_tested_on_is_left_out():
    """Image 201 is in both."""
    found = public_examples(images([50, 201, 51]), images(range(10)))
    assert found.inputs[:, 0, 0, 0].tolist() == [50, 51]
    assert found.labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("public", "sentence"),
    [
        (images(range(4), size=3), r"have inputs of the shape \(1, 2, 2\) of full, but it is \(1, 3, 3\)\."),
        (images(range(4), dtype=torch.float32), "have inputs of the type uint8 of full, but it is 'float32'"),
        (images([200, 201]), "have inputs that are no test inputs of full, but it is 'full'"),
    ],
)
def test_public_data_that_do_not_fit_are_refused(public, sentence):
    with pytest.raises(ConfigError, match=rf"^data@public must {sentence}"):
        public_examples(public, images(range(10)))


def test_text_with_ids_of_its_own_is_refused():
    """Word 7 of one data set is another word in the next."""
    text = replace(images(range(4)), vocabulary=Vocabulary(8))
    for public, own in ((text, images(range(10))), (images(range(4)), text)):
        with pytest.raises(ConfigError, match=r"^data@public must be no text, whose words have other ids"):
            public_examples(public, own)
    with pytest.raises(ConfigError, match=r"^data@public must be no text"):
        public_examples(replace(text, vocabulary=Vocabulary(8)), text)


def test_a_share_of_the_runs_own_text_is_taken():
    text = replace(images([*range(8)] * 2), vocabulary=Vocabulary(8))
    left, public = set_aside(text, 0.5, 0)
    assert rows(public_examples(public, left)) == rows(public.train)


PLACE = ("data.loader.num_train=200", "data.loader.num_test=50", "federation.num_clients=5")


def built(folder, *words):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [*PLACE, *words, f"paths.root={folder}"])
    return build_data(cfg, OmegaConf.to_container(cfg, resolve=True), "cpu")


@pytest.mark.parametrize("partition", ["iid", "shards", "resplit", "permuted"])
def test_no_client_holds_or_is_tested_on_a_public_example(partition, tmp_path):
    """Under resplit test examples come of the training set, but after the share has left it."""
    words = (
        [f"partition={partition}", "partition.split=merged"]
        if partition == "shards"
        else [f"partition={partition}"]
    )
    words += ["partition.inner.min_size=1"] if partition == "resplit" else []
    data = built(tmp_path, *words, "algorithm.public_share=0.25", "algorithm=fedavg")
    assert data.sources == ("train_pool", "test_unlabelled", "public")
    found, labels = data.shared_examples("public", 10**6, 0, 0)
    assert len(found) == len(labels) == 50
    own = {row.tobytes() for row in found.numpy()}
    held = np.concatenate([data.examples_of(data._own(k)) for k in range(5)])
    assert not own & rows(data.dataset.train.rows(held))
    assert not own & rows(data.dataset.test)
    plain = built(tmp_path, *words, "algorithm=fedavg")
    assert "public" not in plain.sources
    assert plain.fingerprint != data.fingerprint


def test_whatever_a_server_shares_can_be_public_inputs(tmp_path):
    data = built(
        tmp_path, "algorithm=fedhenn", "algorithm.public_share=0.25", "algorithm.server.rad_source=public"
    )
    assert len(data.shared_examples("public", 20, 0, 1)[0]) == 20
    other = built(
        tmp_path, "algorithm.public_share=0.25", "data@public=synthetic", "public.loader.shape=[1,8,8]"
    )
    assert len(other.dataset.train) == 200
