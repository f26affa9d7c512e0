"""``fedfeat-wandb``: what it prints, what it sends to a server on this machine, and what it refuses."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedfeat.commands.wandb_command import main

ROOT = Path(__file__).parents[2]
# wandb-workspaces is written for an older pydantic.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")


def without_ids(node):
    """The same without what is drawn anew whenever a panel is made."""
    if isinstance(node, dict):
        return {key: without_ids(value) for key, value in node.items() if key not in ("id", "__id__", "ref")}
    return [without_ids(value) for value in node] if isinstance(node, list) else node


class Service(BaseHTTPRequestHandler):
    """The few answers of W&B's server that saving a view needs; it keeps what it was sent."""

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        given = json.loads(text) if self.path == "/graphql" else {"query": ""}
        kept = given.get("variables") or {}
        if "upsertView" in given["query"]:
            self.server.saved.append(kept)
        view = {"id": "VmlldzoxMjM=", "name": "n", "displayName": "d", "type": "runs", "description": ""}
        view |= {"spec": kept.get("spec"), "project": {"id": "1", "name": "proj", "entityName": "me"}}
        answers = {
            "viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}},
            "models": {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}},
            "upsertModel": {"model": {"id": "1", "name": "proj"}},
            "upsertView": {"view": view, "inserted": True},
        }
        answer = json.dumps({"data": answers}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.saved = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def command(tmp_path, *words, code="from fedfeat.commands.wandb_command import main", **environment):
    """Run it in a process of its own: W&B keeps who is logged in for the life of a process."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    known |= {"HOME": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path), **environment}
    line = f"{code}\nmain({list(words)!r})"
    return subprocess.run(
        [sys.executable, "-c", line],
        env=known,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("kind", ["workspace", "report"])
def test_what_is_sent_is_what_a_dry_run_prints(kind, tmp_path, service, console):
    address = f"http://127.0.0.1:{service.server_port}"
    done = command(tmp_path, kind, "proj", "--tag", "fed2", WANDB_BASE_URL=address, WANDB_API_KEY="a" * 40)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{address}/me/proj")
    (saved,) = service.saved
    code, printed, _ = console(main, kind, "me/proj", "--tag", "fed2", "--dry-run")
    assert code == 0
    expected = json.loads(printed)
    assert {key: saved[key] for key in expected if key != "spec"} == {
        k: v for k, v in expected.items() if k != "spec"
    }
    assert without_ids(json.loads(saved["spec"])) == without_ids(expected["spec"])


def test_without_a_login_it_says_how_to_log_in(tmp_path):
    done = command(tmp_path, "workspace", "proj")
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("fedfeat-wandb: ")]
    assert line.endswith("First: uv run wandb login.")
    assert "Traceback" not in done.stderr


def test_without_a_server_it_says_so(tmp_path):
    nobody = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40, "WANDB_HTTP_TIMEOUT": "1"}
    done = command(tmp_path, "workspace", "proj", **nobody)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "fedfeat-wandb: W&B must" in done.stderr


def test_without_the_extra_it_names_it(tmp_path):
    hidden = (
        "import sys; sys.modules['wandb_workspaces'] = None\nfrom fedfeat.commands.wandb_command import main"
    )
    done = command(tmp_path, "report", "proj", "--dry-run", code=hidden)
    assert done.returncode == 2
    assert done.stderr == (
        "fedfeat-wandb: the package wandb-workspaces must be installed, but it is not: uv sync --extra wandb.\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["workspace", "a/b/c"], "PROJECT must be a project or entity/project, but it is 'a/b/c'."),
        (["report", "p", "--by", "metod", "--dry-run"], "but it is 'metod'; did you mean method"),
        (["workspace", "me/"], "PROJECT must be a project or entity/project, but it is 'me/'."),
        (["workspace", "p", "docs", "--dry-run"], "DIR must be given to a report"),
        (["report", "p", "docs", "--dry-run"], "DIR must hold at least one finished run"),
        (["report", "p", "nowhere", "--dry-run"], "DIR must be a folder, but it is 'nowhere'."),
    ],
)
def test_wrong_words_are_one_sentence(console, words, sentence):
    code, _, stderr = console(main, *(str(ROOT / word) if word == "docs" else word for word in words))
    assert code == 2
    assert sentence in stderr


PAGE = (ROOT / "docs" / "wandb.md").read_text(encoding="utf-8")
LINES = re.findall(r"^uv run --extra wandb fedfeat-wandb ([^#\n]+)", PAGE, re.MULTILINE)


def test_the_page_has_commands():
    assert len(LINES) == 4


@pytest.mark.parametrize("line", LINES)
def test_commands_of_the_page_can_be_given(line, console, finished):
    words = [str(finished) if word.startswith("logs/") else word for word in shlex.split(line)]
    code, printed, stderr = console(main, *words, *([] if "--dry-run" in words else ["--dry-run"]))
    assert code == 0, stderr
    assert json.loads(printed)["projectName"] == "my_project"


def test_a_report_has_a_table_of_published_and_measured_numbers(console, cli, small, tmp_path):
    given = ["+published={global/acc: 0.75}", "federation.num_rounds=1"]
    for seed in (0, 1):
        folder = f"hydra.run.dir={tmp_path}/runs/{seed}"
        assert cli(*small, *given, f"seed={seed}", folder).code == 0
    finals = [
        json.loads((tmp_path / "runs" / s / "summary.json").read_text())["final"]["global/acc"] for s in "01"
    ]
    code, printed, stderr = console(main, "report", "p", "--dry-run", tmp_path / "runs")
    assert code == 0, stderr
    texts = json.dumps(json.loads(printed))
    mean = sum(finals) / 2
    assert "| setting | runs | global/acc | published | difference |" in texts
    assert f"| fedavg | 2 | {mean:.4g} \\u00b1 " in texts
    assert f"| 0.75 | {mean - 0.75:+.4g} |" in texts
