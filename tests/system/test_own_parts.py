"""Mistakes in parts of one's own are answered by what the part has to be, and where the mistake is."""

import re

import mistaken_parts
import pytest

import fedfeat
from fedfeat.config.explain import explain

SMALL = [
    "data=digits", "partition=iid", "model=mlp", "algorithm=fedavg", "federation.num_clients=2",
    "federation.num_rounds=1", "federation.local_epochs=1", "trainer=cpu", "executor=serial", "logger=quiet",
]  # fmt: skip
MODEL = ["~model.hidden", "~model.dropout", "model._target_="]
DATA = ["data.loader._target_="]
CLIENT, SERVER = ["algorithm.client._target_="], ["~algorithm.server.weighting", "algorithm.server._target_="]


@pytest.mark.parametrize(
    ("words", "name", "sentence"),
    [
        (MODEL, "sequential", r"model must make a fedfeat\.models\.network\.Network, but it makes a Sequential\."),
        (MODEL, "too_few_logits", r"model must end with at least 10 outputs, one for each class, but it is Linear\("),
        (MODEL, "unlike_widths", r"model must take inputs of the shape \(1, 8, 8\), but that says: .*\[9, 10\]"),
        (MODEL, "misspelt", r"name 'netwrok' is not defined \(NameError in PLACE; debug=true shows where\)\."),
        (["model._partial_=false", *MODEL], "network", r"mistaken_parts\.network must be what .* takes, but that says: "
         r".*missing 2 required .*'input_shape' and 'num_classes', unless _partial_: true leaves it to the run\."),
        (DATA, "pair", r"data\.loader must make a fedfeat\.data\.examples\.Dataset, but it makes a tuple\."),
        (DATA, "numpy_labels", r"data\.loader must be what .*: labels must be a tensor, but they are a ndarray\."),
        (DATA, "numpy_inputs", r"data\.loader must be what .*: inputs must be a tensor, but they are a ndarray\."),
        (DATA, "no_moments", r"data\.loader must be what .*: mine must have a mean and a std, or those of each channel "
         r"of images \(N, C, H, W\), where inputs are uint8, but they are uint8 .* 1, 8, 8\), with 0 and 0\."),
        (["partition._target_="], "Lists", r"Lists\.assign must give Parts, but it gives a list\."),
        (CLIENT, "OtherUpload", r"Client 0 failed .*OtherUpload\.upload must give \(Weights, memory\), but it gives "
         r"\(Other, NoneType\)\."),
        (CLIENT, "LoneUpload", r"Client 0 failed .*LoneUpload\.upload must give \(Weights, memory\), but it gives a "
         r"Weights\."),
        (CLIENT, "Misspelt", r"Client 0 failed .*: AttributeError: .* has no attribute 'mu' in PLACE\."),
        (CLIENT, "MoreArguments", r"algorithm\.client must take model, optimizer and channels_last from the run and "
         r"all else from its option, but there is missing a required argument: 'mu'\."),
        (CLIENT, "NoClient", r"algorithm\.client must make a fedfeat\.client\.ClientModule, but it makes a NoClient\."),
        (CLIENT, "Absent", r"algorithm\.client\._target_ must name something that can be imported, but it is "
         r"'mistaken_parts\.Absent'\."),
        (CLIENT, "ArrayUpload", r"Client 0 failed .*: TypeError: ArrayUpload\.upload must give a payload of tensors, "
         r"numbers and texts, but a tree cannot hold a ndarray \(at /params/spread\)\."),
        (CLIENT, "SetMemory", r"Client 0 failed .*: TypeError: SetMemory\.upload must give a memory of .*, but a tree "
         r"cannot hold a set \(at /seen\)\."),
        (CLIENT, "NoLoss", r"Client 0 failed .*: TypeError: NoLoss\.loss must give a scalar tensor, but it gives "
         r"NoneType\."),
        (CLIENT, "LossOfEach", r"Client 0 failed .*: TypeError: LossOfEach\.loss must give a scalar tensor, but it "
         r"gives torch\.Size\(\[4\]\)\."),
        (SERVER, "NothingSent", r"NothingSent\.broadcast must give a Weights, but it gives a NoneType\."),
        (SERVER, "SpeechlessServer", r"SpeechlessServer\.payload_type must be the record that it exchanges, but there "
         r"is none\."),
        (["partition._target_="], "NoParts", r"NoParts\.assign must give a pair, .*, but it gives NoneType\."),
        (SERVER, "NoState", r"NoState\.aggregate must give the new state, but it gives None\."),
        (SERVER, "Picky", r"1 \(KeyError in PLACE, at the update of client 1; debug=true shows where\)\."),
        (SERVER, "LatePicky", r".*'momentum_of_none' \(AttributeError in PLACE; debug=true shows where\)\."),
        (SERVER, "MoreOfTheServer", r"algorithm\.server must be what .*missing 1 required .*'beta'\."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, words, name, sentence):
    monkeypatch.chdir(tmp_path)
    *rest, target = words
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type, as the command line catches it
        fedfeat.run([*SMALL, *rest, f"{target}mistaken_parts.{name}", f"hydra.run.dir={tmp_path / 'run'}"])
    place = rf"{re.escape(mistaken_parts.__file__)}:\d+"
    assert re.match(sentence.replace("PLACE", place), explain(caught.value)), explain(caught.value)


def test_a_module_that_cannot_be_imported_says_why_and_where(tmp_path, monkeypatch):
    (tmp_path / "broken_parts.py").write_text("import fedfeat\nfrom fedfeat import nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Exception, match="broken_parts") as caught:
        fedfeat.run(
            [*SMALL, "algorithm.client._target_=broken_parts.Mine", f"hydra.run.dir={tmp_path / 'run'}"]
        )
    said = r"algorithm\.client\._target_ must name something that can be imported, but broken_parts\.Mine says: cannot "
    place = re.escape(f"(ImportError in {tmp_path}/broken_parts.py:2).")
    assert re.match(rf"{said}import name 'nothing' from 'fedfeat' .*{place}", explain(caught.value))
