"""docs/extending.md, followed to the letter: the wheel in an environment of its own, and a package beside it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
# A file of the page: its path in backquotes and a colon, then its content.
FILE = re.compile(r"^`([\w./-]+)`:\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASH = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^## From Python\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def uv():
    """The one that runs the tests, or as the Makefile finds it."""
    found = os.environ.get("UV") or shutil.which("uv")
    private = ROOT / ".uv" / "bin" / "uv"
    if found is None and not private.exists():
        pytest.skip("needs uv, which is neither on the PATH nor in .uv/")
    return found or str(private)


class Outside:
    """A folder with the package of the page, and its environment."""

    def __init__(self, root):
        self.folder = root / "calm"
        kept = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FEDFEAT_ROOT", "FEDFEAT_DATA")
        }
        path = f"{self.folder / '.venv' / 'bin'}:{Path(uv()).parent}:{kept['PATH']}"
        self.environment = kept | {
            "PATH": path,
            "VIRTUAL_ENV": str(self.folder / ".venv"),
            "UV_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, command):
        """Start a command line."""
        return subprocess.Popen(
            ["bash", "-ec", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def call(self, command):
        """Run a command line to its end; give what it printed."""
        process = self.start(command)
        printed, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command}\n{printed}"
        return printed

    def refused(self, command):
        """Run a command line that is refused; give its sentence."""
        process = self.start(command)
        printed, _ = process.communicate(timeout=300)
        assert process.returncode == 2, printed
        return printed

    def sha256(self, run):
        return self.summary(run)["weights_sha256"]

    def summary(self, run):
        return json.loads((self.folder / "runs" / run / "summary.json").read_text())


@pytest.fixture(scope="module")
def lines():
    """The page's command lines, by what tells them apart."""
    found = [line.partition("  #")[0].strip() for block in BASH.findall(PAGE) for line in block.splitlines()]
    assert len(found) == 10, "a command line of the page that is not run here"
    return dict(
        zip(
            ("venv", "install", "activate", "help", "first", "processes", "ray", "unequal", "tune", "pilot"),
            found,
            strict=True,
        )
    )


@pytest.fixture(scope="module")
def outside(tmp_path_factory, lines):
    """The package of the page in an environment that has the wheel; all else comes from that of the tests."""
    root = tmp_path_factory.mktemp("outside")
    one = Outside(root)
    for name, text in FILE.findall(PAGE):
        path = one.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    build = [uv(), "build", "--wheel", "--out-dir", str(root / "dist"), str(ROOT)]
    offline = subprocess.run([*build, "--offline"], capture_output=True, text=True)
    if offline.returncode:  # what builds it may not be there yet
        subprocess.run(build, check=True, capture_output=True)
    assert lines["venv"] == "uv venv"
    one.call(f"uv venv --python {sys.executable}")
    (packages,) = (one.folder / ".venv" / "lib").glob("python*/site-packages")
    # A line of a .pth is a folder; the .pth files in it, such as that of a checkout of fedfeat, do not count.
    (packages / "heavy.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Named, so that no variable of whoever runs the tests can lead the installation into another environment.
    target = f"--python {one.folder / '.venv' / 'bin' / 'python'}"
    one.call(lines["install"].replace("uv pip install", f"uv pip install --no-deps {target}"))
    assert lines["activate"] == "source .venv/bin/activate"
    return one


def test_fedfeat_is_that_of_the_wheel(outside):
    printed = outside.call("python -c 'import fedfeat, calm; print(fedfeat.__file__); print(calm.__file__)'")
    (packages,) = (outside.folder / ".venv" / "lib").glob("python*/site-packages")
    assert printed.splitlines() == [
        str(packages / "fedfeat" / "__init__.py"),
        str(outside.folder / "src" / "calm" / "__init__.py"),
    ]


def test_help_and_refusals_know_her_options(outside, lines):
    found = re.findall(r"^(\S+): (.*)$", outside.call(lines["help"]), re.MULTILINE)
    listed = dict(reversed(found))  # the configuration follows
    for group, option in {
        "algorithm": "calm",
        "algorithm/client": "calm",
        "model": "slim",
        "data": "wine",
        "partition": "ladder",
        "pool": "slims",
        "arm": "bold",
    }.items():
        assert option in listed[group].split(", ")
    words = lines["first"]
    for command, sentence in {
        f"{words} model=slimmer": r"fedfeat: model must be .*\bslim\b.*, but it is 'slimmer'; did you mean slim\?",
        f"{lines['pilot']} +x=1": r"fedfeat: x must be a known key, but there is none of that name; .*",
        f"{lines['pilot']} +study=[long]": r"fedfeat: study must be one of short, but it is 'long'\.",
    }.items():
        printed = outside.refused(command.replace("+study=short +study", "+study"))
        assert re.fullmatch(sentence, printed.strip()), printed
    assert not (outside.folder / "runs" / "first" / "config.yaml").exists()


def test_a_search_finds_her_space(outside, lines):
    printed = outside.call(lines["tune"])
    assert "space: configs/tune/calm.yaml" in printed
    assert re.search(r"^algorithm\.client\.mu +0\.01 to 1, log *$", printed, re.MULTILINE)
    assert "algorithm.server.beta=" in printed.splitlines()[-1]


def killed_after_a_checkpoint(outside, command, run):
    """Start a run and kill it, with all that it has started, when it has written its second checkpoint."""
    process = outside.start(command)
    checkpoint = outside.folder / "runs" / run / "checkpoints" / "000002.json"
    while not checkpoint.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_killed_run_goes_on_and_ends_where_all_others_end(outside, lines):
    killed_after_a_checkpoint(outside, lines["first"], "first")
    assert not (outside.folder / "runs" / "first" / "summary.json").exists()
    done = re.search(r"Resuming after round (\d+) of 30\.", outside.call(lines["first"]))
    assert 2 <= int(done[1]) < 30
    outside.call(lines["processes"])
    assert outside.sha256("first") == outside.sha256("processes")
    assert outside.summary("first")["final"]["global/acc"] > 0.8
    assert len(list((outside.folder / "runs" / "first" / "clients").glob("*.safetensors"))) >= 5


def test_ray_gives_the_same_weights(outside, lines):
    pytest.importorskip("ray")
    outside.call(lines["ray"])
    assert outside.sha256("ray") == outside.sha256("processes")


def test_unequal_networks_and_an_arm_of_hers(outside, lines):
    assert "narrow" in outside.call(lines["unequal"])
    assert outside.summary("unequal")["num_rounds"] == 2
    words = lines["first"].replace("algorithm=calm", "arm=bold").replace("runs/first", "runs/bold")
    outside.call(words.replace("num_rounds=30", "num_rounds=1"))
    assert "name: bold" in (outside.folder / "runs" / "bold" / "config.yaml").read_text()


def test_presets_and_groups_of_a_folder(outside, lines):
    outside.call(lines["pilot"])
    config = (outside.folder / "runs" / "pilot" / "config.yaml").read_text()
    assert "study:\n  rounds: 2\n" in config
    assert outside.summary("pilot")["num_rounds"] == 2
    facts = json.loads((outside.folder / "runs" / "pilot" / "data.json").read_text())
    assert [sum(counts) for counts in facts["class_counts"]] == [
        9,
        19,
        29,
        38,
        47,
    ]  # of 142: 1/15, 2/15 and so on
    assert json.loads((outside.folder / "runs" / "pilot" / "own_code.json").read_text()).keys() == {"calm"}


def test_the_lines_of_python(outside):
    """The run of the folder is finished, so it is only found; the model of another scores as its last row says."""
    (code,) = SNIPPET.findall(PAGE)
    (outside.folder / "look.py").write_text(code)
    rounds, *kept, accuracy, measured = outside.call("python look.py").splitlines()[-1].split()
    assert rounds == "2"
    assert kept == ["[29,", "30]"]
    assert float(accuracy) == pytest.approx(float(measured), abs=1e-6)


def test_every_file_and_command_of_the_page_is_used():
    assert (
        len(FILE.findall(PAGE))
        == PAGE.count("\n```toml\n") + PAGE.count("\n```yaml\n") + PAGE.count("\n```python\n") - 1
    )
