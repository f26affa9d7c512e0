"""Which wheels a bundle has: what runs need there and that machine lacks, by uv.lock."""

import hashlib
import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.tags import Tag

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scripts():
    """Modules of the scripts, by name."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import bundle_format
    import bundle_pack
    import bundle_wheels

    yield {"format": bundle_format, "pack": bundle_pack, "wheels": bundle_wheels}
    sys.path.remove(str(ROOT / "scripts"))
    for name in ("bundle_format", "bundle_pack", "bundle_wheels"):
        sys.modules.pop(name)


def package(name, *dependencies, version="1.0", **more):
    return {"name": name, "version": version, "dependencies": list(dependencies), **more}


def edge(name, **more):
    return {"name": name, **more}


LOCK = [
    package(
        "fedfeat", edge("a"), edge("b", version="2.0", marker="python_version >= '3.12'"),
        edge("b", version="1.0", marker="python_version < '3.12'"),
        edge("big"), **{"optional-dependencies": {"slurm": [edge("sub")]}},
    ),
    package("a", edge("c", extra=["x"]), edge("windows", marker="sys_platform == 'win32'")),
    package("b"),
    package("b", version="2.0"),
    package("c", **{"optional-dependencies": {"x": [edge("d")]}}),
    package("d", edge("a")),
    package("big", edge("cuda")),
    *(package(name) for name in ("cuda", "windows", "sub")),
]  # fmt: skip
DIRECT = ["a>=0.9", "B", "big>=1"]


@pytest.fixture
def target(scripts):
    """A machine by the packages that it has."""

    def make(**packages):
        read = scripts["wheels"].Target.read([], "3.11", ["linux_x86_64"])
        return scripts["wheels"].Target(
            read.environment | {"sys_platform": "linux"}, read.platforms, packages
        )

    return make


@pytest.mark.parametrize(
    ("has", "packed", "there"),
    [
        ({}, {"a", "b", "c", "d", "big", "cuda"}, set()),
        ({"big": None}, {"a", "b", "c", "d"}, {"big"}),
        ({"big": "1.5"}, {"a", "b", "c", "d"}, {"big"}),
        ({"big": "0.5"}, {"a", "b", "c", "d", "big", "cuda"}, set()),
        # Not of fedfeat's own requirements: only the locked version is known to do.
        ({"c": "0.9", "big": "1.0"}, {"a", "b", "c", "d"}, {"big"}),
        ({"c": "1.0", "big": "1.0"}, {"a", "b"}, {"c", "big"}),
    ],
)
def test_what_a_machine_has_is_not_packed_nor_what_that_needs(scripts, target, has, packed, there):
    found = scripts["wheels"].needed(LOCK, DIRECT, target(**has), [])
    assert {name for name, one in found.items() if one is not None} == packed
    assert {name for name, one in found.items() if one is None} == there


def test_markers_are_of_that_machine_and_extras_are_followed(scripts, target):
    wheels = scripts["wheels"]
    newer = wheels.Target(target().environment | {"python_version": "3.12"}, (), {})
    assert wheels.needed(LOCK, DIRECT, newer, [])["b"]["version"] == "2.0"
    assert "sub" in wheels.needed(LOCK, DIRECT, newer, ["slurm"])


def test_of_the_real_lock_a_machine_with_all_but_three_gets_three(scripts):
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    direct = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    has = {one.partition(">")[0]: None for one in direct if not one.startswith(("hydra", "omegaconf"))}
    base = scripts["wheels"].Target.read([], "3.12", ["manylinux_2_28_x86_64"])
    found = scripts["wheels"].needed(
        lock, direct, scripts["wheels"].Target(base.environment, base.platforms, has | {"pyyaml": None}), []
    )
    lacking = {name for name, one in found.items() if one is not None}
    assert lacking == {"hydra-core", "omegaconf", "antlr4-python3-runtime", "packaging"}


def test_a_file_and_names_say_what_is_there(scripts, tmp_path):
    found = scripts["format"].machine() | {"packages": {"one": "1.0"}, "libc": ["glibc", "2.17"]}
    (tmp_path / "have.json").write_text(json.dumps(found))
    target = scripts["wheels"].Target.read([str(tmp_path / "have.json"), "Two_Words"], "3.13", [])
    assert target.packages == {"one": "1.0", "two-words": None}
    assert target.python == (3, 13)
    machine = found["environment"]["platform_machine"]
    assert target.platforms[:3] == [
        f"manylinux_2_17_{machine}",
        f"manylinux2014_{machine}",
        f"manylinux_2_16_{machine}",
    ]
    tags = target.tags()
    assert Tag("cp313", "cp313", f"manylinux2014_{machine}") in tags
    assert Tag("cp39", "abi3", f"manylinux1_{machine}") in tags
    assert Tag("py3", "none", "any") in tags
    assert not any(tag.interpreter == "cp312" and tag.abi == "cp312" for tag in tags)
    assert not any(tag.platform == f"manylinux_2_28_{machine}" for tag in tags)
    with pytest.raises(scripts["format"].Refused, match=r"--platform must be given .* whose libc is 'musl'"):
        scripts["wheels"].manylinux("x86_64", ("musl", "1"))


def test_wheels_of_the_cache_are_those_that_are_locked_and_fit(scripts, target, tmp_path, monkeypatch):
    """Nothing can be fetched here, so what the cache lacks is refused."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_OFFLINE", "1")
    good = tmp_path / "one-1.0-py3-none-any.whl"
    good.write_bytes(b"good")
    file = {"url": f"https://x/{good.name}", "hash": f"sha256:{hashlib.sha256(b'good').hexdigest()}"}
    shutil.copy(good, tmp_path / "two-1.0-cp39-cp39-linux_x86_64.whl")
    one, two = package("one", wheels=[file]), package("two", sdist=file)
    wheels, refused = scripts["wheels"].wheels, scripts["format"].Refused
    assert wheels([one], target(), tmp_path) == [good]
    with pytest.raises(refused, match=r"two must be fetched|pip or uv must be there"):
        wheels([one, two], target(), tmp_path)
    good.write_bytes(b"evil")
    with pytest.raises(refused, match=r"one must be fetched|pip or uv must be there"):
        wheels([one], target(), tmp_path)


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("100M", 100_000_000), ("2K", 2000), ("1G", 10**9), ("0", None), ("1.5M", None)],
)
def test_sizes(scripts, text, size):
    if size is None:
        with pytest.raises(Exception, match="it must be a size such as 100M"):
            scripts["pack"].size_of(text)
    else:
        assert scripts["pack"].size_of(text) == size


def test_parts_are_full_but_for_the_last_and_joined_they_are_the_stream(scripts, tmp_path):
    parts = scripts["format"].Parts(tmp_path, 10)
    for block in (b"abc", b"defghijklmnopqrstuvwxyz", b"0123", b""):
        parts.write(block)
    parts.close()
    assert [one["size"] for one in parts.parts] == [10, 10, 10]
    for one in parts.parts:
        assert hashlib.sha256((tmp_path / one["name"]).read_bytes()).hexdigest() == one["sha256"]
    joined = scripts["format"].Joined([tmp_path / one["name"] for one in parts.parts])
    assert b"".join(iter(lambda: joined.read(7), b"")) == b"abcdefghijklmnopqrstuvwxyz0123"
    assert joined.read(5) == b""
    joined.close()


@pytest.mark.parametrize(
    ("word", "stays"),
    [
        ("algorithm=fed2", True), ("data=cifar10", True), ("executor=processes", True), ("+data.loader.x=1", True),
        ("paths.data=/x", False), ("++paths.root=/x", False), ("hydra.run.dir=/x", False), ("data.root=/x", False),
        ("data.loader.root=/x", False), ("data.loader.cache_dir=/x", False), ("hydra/launcher=basic", False),
    ],
)  # fmt: skip
def test_words_about_places_stay_behind(scripts, tmp_path, word, stays):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(f"- {word}\n- seed=1\n")
    assert scripts["pack"].run_words(tmp_path) == ([word] if stays else []) + ["seed=1"]
