"""A bundle brings code, wheels, data and a run to a machine without a network, whole or not at all."""

import base64
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from cut_runs import lose_end, outcome
from PIL import Image
from safetensors.torch import save_file

from fedfeat.models.mlp import mlp

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
ANTLR = "antlr4-python3-runtime"
WORDS = (
    "data=mnist", "data.loader.download=false", "partition=iid", "algorithm=fedrep", "model=mlp", "model.hidden=[8]",
    "trainer=cpu", "federation.num_clients=4", "federation.num_rounds=4", "federation.batch_size=4",
    "federation.local_epochs=2", "federation.checkpoint_every=1", "algorithm.client.head_epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def scripts():
    """Modules of the scripts, by name."""
    sys.path.insert(0, str(SCRIPTS))
    import bundle_format
    import bundle_pack
    import bundle_wheels

    yield {"format": bundle_format, "pack": bundle_pack, "wheels": bundle_wheels}
    sys.path.remove(str(SCRIPTS))
    for name in ("bundle_format", "bundle_pack", "bundle_wheels"):
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def offline():
    """Words before a command that is to have no network."""
    words = ["unshare", "-rn"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("needs a network namespace of its own (unshare -rn), which is not permitted here")
    names = subprocess.run(
        [*words, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split(":")[0].strip() for line in names.splitlines()[2:]] == ["lo"]
    return words


def call(*words, **environment):
    """Run a program as a user who has no variables of ours."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FEDFEAT_", "PYTHONPATH"))}
    command = [str(word) for word in words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd="/", env=kept | environment, timeout=300
    )


def done(*words, **environment):
    """Run a program that succeeds; give what it printed."""
    found = call(*words, **environment)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def refused(*words, **environment):
    """Run a command of a bundle that is refused; give its sentence."""
    found = call(*words, **environment)
    assert found.returncode == 2, found.stdout + found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith("bundle: ")
    return found.stderr.strip()


def packages_without(folder, *names):
    """Write what this machine has, but for some packages."""
    found = json.loads(done(sys.executable, SCRIPTS / "bundle.py", "have"))
    for name in names:
        del found["packages"][name]
    path = folder / f"have-{len(names)}.json"
    path.write_text(json.dumps(found))
    return path


def wheel_of(name, folder):
    """Make the wheel of an installed package of Python's own language again, from its files."""
    one = importlib.metadata.distribution(name)
    info = next(path.parent.name for path in one.files if path.name == "METADATA")
    own = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    kept = [
        path for path in one.files if path.parts[0] != ".." and path.suffix != ".pyc" and path.name not in own
    ]
    target = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with zipfile.ZipFile(target, "w") as archive:
        for path in kept:
            content = Path(one.locate_file(path)).read_bytes()
            archive.writestr(str(path), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append((str(path), f"sha256={digest}", len(content)))
        with archive.open(f"{info}/RECORD", "w") as file:
            text = "".join(f"{','.join(map(str, row))}\n" for row in [*rows, (f"{info}/RECORD", "", "")])
            file.write(text.encode())
    return target


@pytest.fixture
def lock(scripts, tmp_path, monkeypatch):
    """The lock, but that omegaconf has no wheel there, so that one made here will do; as antlr's runtime."""
    text, count = re.subn(r'(name = "omegaconf"\nversion.*?)^wheels = \[.*?^\]', r"\1", (ROOT / "uv.lock").read_text(),
                          count=1, flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    assert count == 1
    (tmp_path / "uv.lock").write_text(text)
    monkeypatch.setattr(scripts["pack"], "LOCK", tmp_path / "uv.lock")


def mnist(folder):
    """Put a few images of noise where MNIST is looked for."""
    draw = np.random.default_rng(3)
    for split, label, number in ((s, c, n) for s in ("train", "test") for c in range(10) for n in range(4)):
        path = folder / "mnist" / split / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (28, 28), dtype=np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def small(scripts, tmp_path_factory):
    """A bundle of the code alone, in several parts, for a machine that has all packages."""
    folder = tmp_path_factory.mktemp("small")
    have = packages_without(folder)
    scripts["pack"].main(["--out", str(folder / "bundle"), "--have", str(have), "--part-size", "300K"])
    assert len(list((folder / "bundle").glob("part-*"))) > 3
    return folder / "bundle"


@pytest.fixture
def parts(small, tmp_path):
    """A copy of the small bundle."""
    return shutil.copytree(small, tmp_path / "parts")


@pytest.fixture(scope="module")
def unpacked(small, tmp_path_factory):
    """The small bundle, unpacked."""
    folder = tmp_path_factory.mktemp("unpacked") / "over there"
    done(sys.executable, small / "bundle.py", "unpack", folder)
    return folder


def test_a_search_for_pip_leaves_distutils_to_setuptools():
    """What torch compiles on CPUs needs it, and its own of Python 3.11 is deprecated."""
    code = "import bundle_wheels; bundle_wheels.pip(); import distutils; print(distutils.__file__)"
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "setuptools" in done.stdout


@pytest.mark.slow
def test_a_packed_run_goes_on_without_a_network_to_the_same_weights(cli, scripts, lock, offline, tmp_path):
    data, start = mnist(tmp_path / "images"), tmp_path / "images" / "start.safetensors"
    torch.manual_seed(1)
    save_file(mlp((1, 28, 28), 10, hidden=[8]).state_dict(), start)
    assert cli(*WORDS, f"paths.data={data}", f"model.weights={start}").code == 0
    expected = outcome(tmp_path / "run")
    lose_end(tmp_path / "run", 4)
    made = {wheel_of(name, tmp_path / "wheels").name for name in (ANTLR, "omegaconf")}
    have = packages_without(tmp_path, ANTLR, "omegaconf")
    words = ["--have", have, "--wheels", tmp_path / "wheels", "--part-size", "500K"]
    words += ["--data", "mnist", "--data-root", data, "--run", tmp_path / "run", "--out", tmp_path / "bundle"]
    scripts["pack"].main([str(word) for word in words])
    shutil.rmtree(tmp_path / "images")
    shutil.rmtree(tmp_path / "run")
    there = tmp_path / "there"
    path = f"{ROOT / '.uv' / 'bin'}:{os.environ['PATH']}"
    done(*offline, sys.executable, tmp_path / "bundle" / "bundle.py", "unpack", there, PATH=path)
    assert {one.name for one in (there / "wheels").iterdir()} == made
    assert sorted(one.name for one in (there / "data").iterdir()) == ["mnist.safetensors"]
    assert [one.name for one in (there / "weights").iterdir()] == ["model.weights"]
    printed = done(*offline, sys.executable, there / "bundle.py", "run", there, OMP_NUM_THREADS="1")
    assert "round 4/4" in printed
    assert "round 3/4" not in printed
    assert outcome(there / "run") == expected
    commit = json.loads((there / "run" / "summary.json").read_text())["git_commit"]
    assert commit == json.loads((there / "manifest.json").read_text())["commit"]
    program = "import omegaconf, fedfeat, torch as t; print(*(m.__file__ for m in (omegaconf, fedfeat, t)), sep='\\n')"
    packed, ours, theirs = done(there / ".venv" / "bin" / "python", "-c", program).splitlines()
    assert Path(packed).is_relative_to(there / ".venv")
    assert Path(ours).is_relative_to(there / "code")
    assert not Path(theirs).is_relative_to(there)


def test_all_tracked_files_arrive_as_they_are(unpacked):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert len(names) > 500
    assert [
        name for name in names if (ROOT / name).read_bytes() != (unpacked / "code" / name).read_bytes()
    ] == []


def test_its_commands_are_in_the_environment(unpacked):
    assert "usage" in done(unpacked / ".venv" / "bin" / "fedfeat-report", "--help")


def state(folder):
    """Content and time of everything below a folder."""
    return {
        path: (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def test_a_second_unpack_changes_nothing(unpacked, small):
    before = state(unpacked)
    assert "holds this bundle already" in done(sys.executable, small / "bundle.py", "unpack", unpacked)
    assert state(unpacked) == before


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "name", "sentence"),
    [
        (flip, "part-002", "must be as it was packed, but it is damaged: copy it again."),
        (cut, "part-002", "must be as it was packed, but it is 1000 bytes of 300000: copy it again."),
        (Path.unlink, "part-003", "must be there, but it is not: copy it again."),
        (Path.unlink, "manifest.json", "must be there, but it is not: copy it again."),
        (flip, "manifest.json", "must be as it was packed, but it is damaged: copy it again."),
        (cut, "manifest.json", "must be as it was packed, but it is damaged: copy it again."),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(parts, tmp_path, damage, name, sentence):
    damage(parts / name)
    assert refused(sys.executable, parts / "bundle.py", "unpack", tmp_path / "there") == (
        f"bundle: {parts / name} {sentence}"
    )
    assert not (tmp_path / "there").exists()


def test_a_killed_unpack_is_made_good_by_the_next(small, unpacked, tmp_path):
    """Killed while files come out, and while packages are installed."""
    there, fresh = tmp_path / "there", tmp_path / ".there.unpack.tmp"
    command = [sys.executable, small / "bundle.py", "unpack", there]
    for begun in (fresh / "code" / "configs", there / ".venv"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while not begun.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert there.exists() == (begun != fresh / "code" / "configs")
    assert not (there / ".installed").exists()
    assert "unpack into it first" in refused(sys.executable, small / "bundle.py", "run", there)
    assert "is ready" in done(*command)
    assert not fresh.exists()
    assert {path.relative_to(there) for path in (there / "code").rglob("*")} == {
        path.relative_to(unpacked)
        for path in (unpacked / "code").rglob("*")
        if "__pycache__" not in path.parts
    }


def test_a_folder_with_something_else_is_left_alone(parts, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("x")
    assert "but it holds something else." in refused(
        sys.executable, parts / "bundle.py", "unpack", tmp_path / "there"
    )
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]


def sign(scripts, folder, **changes):
    """Put other values into the manifest of a bundle."""
    path = folder / "manifest.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}
    path.write_text(json.dumps(scripts["format"].signed(content | changes)))


@pytest.mark.slow
def test_a_wheel_or_a_package_that_is_missing_is_named(scripts, parts, tmp_path):
    there = tmp_path / "there"
    sign(scripts, parts, wheels=["lost-1-py3-none-any.whl"])
    sentence = refused(sys.executable, parts / "bundle.py", "unpack", there)
    assert "wheels/lost-1-py3-none-any.whl must be there, but it is not" in sentence
    shutil.rmtree(there)
    sign(scripts, parts, wheels=[], needs={"torch": None, "nowhere": None})
    sentence = refused(sys.executable, parts / "bundle.py", "unpack", there)
    assert sentence.startswith("bundle: nowhere must be on this machine, for it was not packed, but ")
    assert not there.exists()
    sign(scripts, parts, needs={"numpy": "0.1"})
    sentence = refused(sys.executable, parts / "bundle.py", "unpack", there)
    assert sentence.startswith("bundle: numpy must be 0.1, as it was packed, but it is ")


def test_a_plain_python_unpacks_and_says_what_it_lacks(small, tmp_path):
    """The Python below this environment has no package of ours: nothing of the bundle may import one."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    if not python.exists():
        pytest.skip(f"needs the Python that this environment was made of, which is not at {python}")
    sentence = refused(python, small / "bundle.py", "unpack", tmp_path / "there")
    assert f"must be on this machine, for it was not packed, but {python} lacks it." in sentence


def test_another_python_is_refused(scripts, parts, tmp_path):
    environment = json.loads((parts / "manifest.json").read_text())["environment"]
    sign(scripts, parts, wheels=["one.whl"], environment=environment | {"python_version": "3.99"})
    assert "python_version must be 3.99, as the bundle's wheels need, but it is 3.1" in refused(
        sys.executable, parts / "bundle.py", "unpack", tmp_path / "there"
    )
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "cifar11"], "--data must be one of mnist, fashion_mnist, cifar10, cifar100 or lie in"),
        (["--data", "cifar10"], "cifar10 must be in data.root as"),
        (["--run", "{tmp}"], "--run must be the directory of a run, but"),
        (["--out", "{tmp}"], "--out must be a new or empty folder, but"),
    ],
)
def test_what_cannot_be_packed_is_one_sentence(scripts, tmp_path, console, words, sentence):
    (tmp_path / "mine").write_text("x")
    words = [word.format(tmp=tmp_path) for word in words]
    have = packages_without(tmp_path)
    common = ("--out", tmp_path / "out", "--data-root", tmp_path, "--have", have)
    code, _, said = console(scripts["pack"].main, *common, *words)
    assert code == 2
    assert sentence in said
    assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine", have.name}


def test_a_wheel_of_the_cache_that_was_altered_is_not_packed(offline, tmp_path):
    have = packages_without(tmp_path, "omegaconf")
    version = importlib.metadata.version("omegaconf")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / f"omegaconf-{version}-py3-none-any.whl").write_bytes(b"not what is locked")
    words = ["pack", "--out", tmp_path / "out", "--have", have, "--wheels", tmp_path / "wheels"]
    sentence = refused(*offline, sys.executable, SCRIPTS / "bundle.py", *words, PYTHONPATH=str(ROOT / "src"))
    assert "omegaconf must be fetched from the package index" in sentence or "pip or uv must be" in sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_wheels_of_the_index_are_installed_without_network_and_uv(scripts, offline, tmp_path, console):
    names = ("hydra-core", "omegaconf", ANTLR)
    words = [
        "--have",
        packages_without(tmp_path, *names),
        "--wheels",
        tmp_path / "wheels",
        "--out",
        tmp_path / "b",
    ]
    code, _, said = console(scripts["pack"].main, *words)
    if code:
        pytest.skip(f"needs a package index, but {said}")
    there, environment = tmp_path / "there", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done(*offline, sys.executable, tmp_path / "b" / "bundle.py", "unpack", there, **environment)
    assert {path.name.partition("-")[0] for path in (there / "wheels").iterdir()} == {
        "hydra_core", "omegaconf", "antlr4_python3_runtime",
    }  # fmt: skip
    words = (
        "data=digits",
        "partition=iid",
        "model=mlp",
        "algorithm=fedavg",
        "trainer=cpu",
        "federation.num_rounds=1",
    )
    run = ("federation.num_clients=2", *words)
    done(*offline, sys.executable, there / "bundle.py", "run", there, *run, **environment)
    assert len(list((there / "logs").rglob("summary.json"))) == 1
    program = "import hydra, omegaconf, antlr4; print(hydra.__file__, omegaconf.__file__, antlr4.__file__, sep='\\n')"
    found = done(there / ".venv" / "bin" / "python", "-c", program).splitlines()
    assert all(Path(path).is_relative_to(there / ".venv") for path in found)
