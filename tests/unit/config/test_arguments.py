"""Names and values beside a ``_target_``, compared with the constructor: parts of a user's own, not the package's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import pytest

from fedfeat.client import ClientModule, joined
from fedfeat.config.arguments import check_targets
from fedfeat.config.conditions import Condition, Count, NotNegative, Share, Text, interval
from fedfeat.errors import ConfigError, UserError

if TYPE_CHECKING:
    from nowhere import Unknown


class Window(NamedTuple):
    """A record."""

    first: Count
    last: Count | None = None


class Averaging(ABC):
    """What only a part can be."""

    @abstractmethod
    def average(self) -> None:
        """Average."""


@dataclass(frozen=True)
class Matching:
    """A part within a part."""

    gamma: Share = 0.5


@dataclass(frozen=True)
class Strict(Matching):
    """A part that narrows a field of its base, and has one under two rules."""

    gamma: Annotated[float, interval("[0, 0.5)")] = 0.25
    size: Annotated[Count, Condition(lambda value: value % 2 == 0, "be even")] = 2


class Base:
    """A base of its own, with arguments of its own."""

    def __init__(self, model: Any, personal: Sequence[Text] = (), rate: float = 0.1) -> None:
        self.model = model


class Middle(Base):
    """Hands on what it does not know."""

    def __init__(self, *, mu: NotNegative = 0.001, rate: Share = 0.1, **arguments: Any) -> None:
        super().__init__(rate=rate, **arguments)


class Part(Middle):
    """One argument of each kind."""

    def __init__(
        self,
        *,
        mode: Literal["sum", "mean", 3] = "sum",
        share: Annotated[float, interval("(0, 1]")] = 1.0,
        count: int = 1,
        ratio: float = 1.0,
        flag: bool = False,
        name: str = "",
        where: str | Path | None = None,
        limit: Count | None = None,
        depth: int | Literal["all"] = "all",
        sizes: list[Count] | None = None,
        pair: tuple[int, float] = (1, 1.0),
        any_length: tuple[int, ...] = (),
        table: Mapping[str, Share] | None = None,
        window: Window | None = None,
        matching: Matching | None = None,
        average: Averaging | None = None,
        unknown: Unknown = None,
        call: Callable[[], None] | None = None,
        untyped=None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)


class Keeping(Base):
    """Keeps further settings instead of handing them on."""

    def __init__(self, mode: Literal["a", "b"] = "a", **settings: Any) -> None:
        super().__init__(None)
        self.settings = settings


class Shared:
    """A server half with a key ``init``."""

    def __init__(self, init: Literal["shared", "independent"] = "shared") -> None:
        self.start = init


class Drawn:
    """Another one with that key."""

    def __init__(
        self, init: Literal["zeros", "normal"] = "zeros", momentum: Share = 0.0, lr: float = 1.0
    ) -> None:
        self.start = init


def proximal(model: Any, mu: NotNegative = 0.1) -> None:
    """Be a part that is a function."""


class First(ClientModule):
    """A client half."""

    def __init__(self, *, nu: Share = 0.0, **arguments: Any) -> None:
        super().__init__(**arguments)


class Second(ClientModule):
    """Another one."""

    def __init__(self, *, tau: Count = 1, **arguments: Any) -> None:
        super().__init__(**arguments)


def part(kind: str = "Part", /, **given: Any) -> dict[str, Any]:
    return {"half": {"_target_": f"{__name__}.{kind}", "_partial_": True, **given}}


def sentence(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        check_targets(config)
    return str(caught.value)


REFUSED = [
    ("mode", "max", "be one of sum, mean, 3"),
    ("mode", True, "be one of sum, mean, 3"),
    ("mode", None, "be one of sum, mean, 3"),
    ("share", 0, "be in (0, 1]"),
    ("share", "0.5", "be in (0, 1]"),
    ("share", None, "be in (0, 1]"),
    ("count", 1.0, "be an integer"),
    ("count", True, "be an integer"),
    ("ratio", "abc", "be a number"),
    ("ratio", False, "be a number"),
    ("flag", 1, "be true or false"),
    ("name", 3, "be a text"),
    ("where", 3, "be a text"),
    ("limit", 0, "be an integer of at least 1"),
    ("depth", "some", "be an integer, or one of all"),
    ("depth", 1.5, "be an integer, or one of all"),
    ("depth", None, "be an integer, or one of all"),
    ("sizes", 3, "be a list in which each must be an integer of at least 1"),
    ("sizes", [2, 0], "be a list in which each must be an integer of at least 1"),
    ("pair", [1], "be a list of an integer, a number"),
    ("pair", [1.5, 1], "be a list of an integer, a number"),
    ("any_length", [1, "a"], "be a list in which each must be an integer"),
    ("table", [0.5], "be a section in which each value must be in [0, 1)"),
    ("table", {"a": 1}, "be a section in which each value must be in [0, 1)"),
    ("window", 3, "be a section with keys of its own"),
    ("matching", 7.0, "be a section with keys of its own"),
    ("average", "mean", "be a section with keys of its own"),
    ("mu", -0.1, "be in [0, inf)"),  # of its base
    ("rate", 1.5, "be in [0, 1)"),  # of its base, narrower there than in the base's base
    ("personal", ["head", ""], "be a list in which each must be a non-empty text"),  # of the base's base
]


@pytest.mark.parametrize(("key", "value", "text"), REFUSED)
def test_a_value_of_another_type_is_refused(key, value, text):
    assert sentence(part(**{key: value})) == f"half.{key} must {text}, but it is {value!r}."


ACCEPTED = [
    ("mode", "mean"),
    ("mode", 3),
    ("share", 1),
    ("count", -3),
    ("ratio", 2),
    ("flag", True),
    ("name", ""),
    ("where", "/tmp"),
    ("where", None),
    ("limit", None),
    ("limit", 1),
    ("depth", "all"),
    ("depth", 0),
    ("sizes", []),
    ("sizes", [1, 2]),
    ("sizes", None),
    ("pair", [1, 2]),
    ("any_length", [1, 2, 3]),
    ("table", {"a": 0.5}),
    ("window", {"first": 1}),
    ("window", None),
    ("matching", {"_target_": f"{__name__}.Matching", "gamma": 0.1}),
    ("average", None),
    # A section with a target stands for what it makes.
    ("average", {"_target_": f"{__name__}.Keeping"}),
    ("ratio", {"_target_": f"{__name__}.Matching"}),
    ("sizes", [1, {"_target_": f"{__name__}.Matching"}]),
    ("call", {"_target_": f"{__name__}.proximal", "_partial_": True}),
    ("unknown", "anything"),
    ("untyped", ["anything"]),
    ("model", "anything"),
    ("mu", 0),
    ("personal", ["head"]),
]


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_a_value_of_the_type_passes(key, value):
    check_targets(part(**{key: value}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"window": {"first": 0}}, "half.window.first must be an integer of at least 1, but it is 0."),
        (
            {"window": {"frist": 1}},
            "half.window.frist must be a known key, but there is none of that name; known there: first, last; "
            "did you mean first?",
        ),
        (
            {"matching": {"_target_": f"{__name__}.Matching", "gamma": 2}},
            "half.matching.gamma must be in [0, 1), but it is 2.",
        ),
        (
            {"untyped": [{"_target_": f"{__name__}.proximal", "mu": -1}]},
            "half.untyped.0.mu must be in [0, inf), but it is -1.",
        ),
        (
            {"untyped": {"deep": {"_target_": f"{__name__}.elsewhere"}}},
            f"half.untyped.deep._target_ must name something that can be imported, but it is '{__name__}.elsewhere'.",
        ),
    ],
)
def test_sections_within_a_part_are_checked_as_well(given, expected):
    assert sentence(part(**given)) == expected


def test_a_class_that_is_misspelt_is_named_with_those_of_its_module():
    given = {"untyped": {"_target_": f"{__name__}.Matchin"}}
    assert sentence(part(**given)).endswith(f"but it is '{__name__}.Matchin'; did you mean Matching?")
    given = {"untyped": {"_target_": f"{__name__}s.Matching"}}
    assert sentence(part(**given)).endswith(f"but it is '{__name__}s.Matching'.")


def test_a_key_that_no_base_takes_is_refused():
    start = "half.nu must be a known key, but there is none of that name; known there: mode, share, count"
    assert sentence(part(nu=1)).startswith(start)
    assert sentence(part(nu=1)).endswith("mu, rate, model, personal.")


def test_a_part_that_keeps_further_arguments_may_have_any():
    check_targets(part("Keeping", anything=1))
    assert sentence(part("Keeping", mode="c", anything=1)) == "half.mode must be one of a, b, but it is 'c'."


def test_functions_are_parts():
    assert sentence(part("proximal", mu=-1)) == "half.mu must be in [0, inf), but it is -1."


def test_a_field_has_the_type_of_the_last_class_that_declares_it_and_all_rules_of_that():
    check_targets(part("Strict", gamma=0.4, size=4))
    assert sentence(part("Strict", gamma=0.6)) == "half.gamma must be in [0, 0.5), but it is 0.6."
    for size in (0, 3):
        expected = f"half.size must be an integer of at least 1 and be even, but it is {size}."
        assert sentence(part("Strict", size=size)) == expected


@pytest.mark.parametrize("owner", ["Shared", "Drawn"])
@pytest.mark.parametrize("value", ["shared", "zeros"])
def test_a_key_of_two_methods_has_the_rule_of_the_one_that_is_there(owner, value):
    config = {"algorithm": {"server": part(owner, init=value)["half"]}}
    own = {"Shared": "shared, independent", "Drawn": "zeros, normal"}[owner]
    if value in own:
        check_targets(config)
    else:
        assert sentence(config) == f"algorithm.server.init must be one of {own}, but it is {value!r}."


def test_a_learning_rate_of_a_server_names_its_key_before_the_first_round():
    config = {"algorithm": {"server": part("Drawn", lr="abc")["half"]}}
    assert sentence(config) == "algorithm.server.lr must be a number, but it is 'abc'."


def halves(*names: str, **given: Any) -> dict[str, Any]:
    classes = [{"_target_": "hydra.utils.get_class", "path": f"{__name__}.{name}"} for name in names]
    target = f"{joined.__module__}.{joined.__qualname__}"
    return {"client": {"_target_": target, "_partial_": True, "halves": classes, **given}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"nu": 1.0}, "client.nu must be in [0, 1), but it is 1.0."),
        ({"tau": 0}, "client.tau must be an integer of at least 1, but it is 0."),
        ({"softmax_scope": "some"}, "client.softmax_scope must be one of all, present_classes, "),
        (
            {"theta": 1},
            "client.theta must be a known key, but there is none of that name; known there: halves",
        ),
    ],
)
def test_joined_halves_take_what_each_takes(given, expected):
    check_targets(halves("First", "Second", nu=0.5, tau=2, softmax_scope="all", personal=["head"]))
    assert sentence(halves("First", "Second", **given)).startswith(expected)


def test_a_half_without_a_signature_may_take_anything():
    """`dict` stands for a class that is written in C, of whose arguments Python knows nothing."""
    config = halves("First", theta=1)
    config["client"]["halves"].append({"_target_": "hydra.utils.get_class", "path": "builtins.dict"})
    check_targets(config)
    config["client"]["nu"] = 1.0
    assert sentence(config) == "client.nu must be in [0, 1), but it is 1.0."


def test_a_half_that_does_not_exist_is_refused():
    expected = f"client.halves.1.path must name something that can be imported, but it is '{__name__}.Third'."
    assert sentence(halves("First", "Third")) == expected


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"nesterov": 1}, "be true or false"),
        ({"dampening": "much"}, "be a number"),
        ({"foreach": None}, None),
    ],
)
def test_simple_types_of_other_libraries_are_checked(given, rule):
    config = {"optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1, **given}}
    if rule is None:
        check_targets(config)
    else:
        ((key, value),) = given.items()
        assert sentence(config) == f"optimizer.{key} must {rule}, but it is {value!r}."


def test_what_a_module_says_itself_when_it_is_imported_is_kept(tmp_path, monkeypatch):
    (tmp_path / "refusing_part.py").write_text(
        "from fedfeat.errors import UserError\nraise UserError('executor must be another one.')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"^executor must be another one\.$"):
        check_targets({"executor": {"_target_": "refusing_part.Executor"}})
