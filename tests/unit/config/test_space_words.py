"""What may be tried of a key, as Hydra's sweeps are written."""

import pytest

from fedfeat.config.spaces import Choices, Interval, dimension, space_name, split_words
from fedfeat.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval(0.1, 2)", Interval(0.1, 2.0, False, False)),
        ("tag(log, interval(1e-3, 1))", Interval(0.001, 1.0, True, False)),
        ("int(interval(1, 9))", Interval(1, 9, False, True)),
        ("choice(1, 2.5, big)", Choices(("1", "2.5", "big"))),
        ("a,[1,2]", Choices(("a", "[1,2]"))),
        ("range(1, 4)", Choices(("1", "2", "3"))),
    ],
)
def test_it_is_written_as_a_sweep(text, expected):
    found = dimension("optimizer.lr", text)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    "text",
    [
        "0.1",
        "interval(2, 1)",
        "tag(log, interval(0, 1))",
        "interval(1",
        "[1, 2]",
        "",
        "shuffle(1, 2)",
        "glob(*)",
    ],
)
def test_what_gives_no_choice_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"^optimizer.lr must be tried as choice\(A, B\), interval\(.*, but it is"
    ):
        dimension("optimizer.lr", text)


def test_a_value_becomes_a_word_within_the_interval():
    assert dimension("a.b", "tag(log, interval(1e-5, 1))").word("a.b", 0.000123456) == "a.b=0.0001235"
    assert dimension("a.b", "int(interval(1, 9))").word("a.b", 4) == "a.b=4"
    assert dimension("a.b", "choice(null_start, [8])").word("a.b", "[8]") == "a.b=[8]"
    one = dimension("a.b", "interval(0.12344, 0.98766)")
    assert [one.word("a.b", end) for end in one.ends()] == ["a.b=0.12344", "a.b=0.98766"]
    assert [one.word("a.b", value) for value in (0.123456, 0.98764)] == ["a.b=0.1235", "a.b=0.9876"]
    assert dimension("a.b", "interval(0.9, 0.99999)").word("a.b", 0.999985) == "a.b=0.999985"


def test_words_with_several_values_are_told_from_fixed_ones():
    words = [
        "data=digits",
        "model.hidden=[8,8]",
        "optimizer.lr=0.1,0.2",
        "federation.local_epochs=choice(1, 2)",
    ]
    fixed, swept = split_words(words)
    assert fixed == words[:2]
    assert swept == {"optimizer.lr": "0.1,0.2", "federation.local_epochs": "choice(1, 2)"}


def test_a_method_has_its_own_file_or_the_common_one(tmp_path):
    assert space_name([None, "fedprox_one", "fedprox"]) == "fedprox"
    assert space_name(["fedavg"]) == "base"
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "calm.yaml").write_text("optimizer.lr: choice(1, 2)\n")
    assert space_name(["calm"], [f"hydra.searchpath=[file://{tmp_path}]"]) == "calm"
