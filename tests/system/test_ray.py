"""``executor=ray``: the numbers of ``serial`` whatever happens to workers, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from executor_cases import CASES, merged, run, serial
from waiting import wait_for as waited_for

ray = pytest.importorskip("ray", reason="executor=ray needs the extra `ray`, which is not installed")

from fedfeat.errors import ClientError, UserError  # noqa: E402
from fedfeat.executors.on_ray import executor as executor_module  # noqa: E402
from fedfeat.executors.on_ray.cluster import Cluster  # noqa: E402
from fedfeat.executors.on_ray.pool import Pool  # noqa: E402
from fedfeat.runs.leftovers import sweep  # noqa: E402

pytestmark = pytest.mark.slow

FEDAVG = CASES["fedavg"]
# Cases that run with other numbers of workers too: one network, personal state, trimmed ones, a pool of them.
VARIED = ("fedavg", "personal_head", "psi_net", "fedhenn_hetero")
# Examples of the client that has fewest of them in the cases' partition; no other has as few.
SMALLEST = 6
# A worker takes seconds to import torch, and much longer where others are busy.
PATIENCE_S = 240
wait_for = partial(waited_for, seconds=PATIENCE_S)  # workers yield to every other process


def harmful(name, folder, victim=0):
    """Overrides that give all clients a half of `ray_clients`."""
    folder.mkdir(parents=True)
    return [
        f"algorithm.client._target_=ray_clients.{name}",
        f"+algorithm.client.folder={folder}",
        f"+algorithm.client.victim={victim}",
        "federation.cohort_size=null",
    ]


@pytest.fixture(scope="module", autouse=True)
def handlers():
    """Signal handlers as they were: Ray leaves its own for SIGTERM in every process that has started a node."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture(scope="class")
def cluster():
    """One local cluster for many runs, whose idle workers go from run to run: each is built anew by its first call."""
    kept = []

    class KeptPool(Pool):
        def _new_actor(self):
            return kept.pop() if kept else super()._new_actor()

        def close(self):
            while self._busy:
                self.wait()
            kept.extend(self._idle)
            self._idle = []

    ours = Cluster(None)
    ours.open(num_cpus=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor_module, "Pool", KeptPool)
        yield
    ours.close()


@pytest.mark.usefixtures("cluster")
class TestOneMachine:
    @pytest.mark.parametrize(
        ("name", "num_workers"), [(name, 2) for name in CASES] + list(product(VARIED, (1, 4)))
    )
    def test_weights_and_metrics_are_those_of_serial(self, name, num_workers, tmp_path):
        found = run(tmp_path, CASES[name], "ray", f"executor.num_workers={num_workers}")
        assert found == serial(name)

    def test_so_are_they_when_no_turn_may_be_started_early(self, tmp_path):
        assert run(tmp_path, FEDAVG, "ray", "executor.window=1", "executor.num_workers=2") == serial("fedavg")

    def test_weights_are_put_into_the_store_once_per_round(self, tmp_path, monkeypatch):
        puts = []
        monkeypatch.setattr(ray, "put", lambda value, put=ray.put: puts.append(value) or put(value))
        run(tmp_path, FEDAVG, "ray", "executor.num_workers=2", "federation.cohort_size=null")
        parts, *payloads = puts
        assert len(payloads) == 2  # one for each round, for all five clients
        weights = 8 * (16 + 1) + 6 * (8 + 1) + 4 * (6 + 1)
        for payload in payloads:
            assert sum(flat.data.nbytes for flat in payload) == 4 * weights
        images = [flat for flat in parts.tensors if flat.fixed and flat.data.nbytes == 60 * 16]
        assert len(images) == 1  # the training set once, although two records hold it

    def test_a_worker_that_is_killed_in_a_fit_changes_nothing(self, tmp_path, caplog):
        folder = tmp_path / "harm"
        expected = run(tmp_path / "serial", [*FEDAVG, "federation.cohort_size=null"], "serial")
        overrides = [*FEDAVG, *harmful("Killed", folder)]
        assert run(tmp_path / "ray", overrides, "ray", "executor.num_workers=2") == expected
        assert sorted(path.name for path in folder.iterdir()) == ["first", "second"]
        assert caplog.text.count("was lost; it runs again") == 2

    def test_a_client_that_kills_every_worker_is_given_up(self, tmp_path):
        folder = tmp_path / "harm"
        overrides = [*FEDAVG, *harmful("Deadly", folder, victim=SMALLEST)]
        with pytest.raises(
            ClientError, match=r"^Client \d failed in round 1 \(seed \d+\): its worker died 3 times"
        ):
            run(tmp_path / "ray", overrides, "ray", "executor.num_workers=2")
        assert len(list(folder.glob("killed-*"))) == 3

    def test_a_client_that_fails_is_told_in_the_same_words(self, tmp_path):
        overrides = [*FEDAVG, *harmful("Failing", tmp_path / "harm", victim=SMALLEST)]
        said = []
        for executor in ("serial", "ray"):
            with pytest.raises(ClientError) as caught:
                run(tmp_path / executor, overrides, executor)
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert "ValueError: out of luck in " in said[0]
        assert "in training_step" in "".join(caught.value.__notes__)  # where it happened, for debug=true

    def test_or_is_skipped(self, tmp_path, caplog):
        overrides = [*FEDAVG, *harmful("Failing", tmp_path / "harm", victim=SMALLEST)]
        overrides += ["federation.on_client_error=skip"]
        expected = run(tmp_path / "serial", overrides, "serial")
        assert expected[1]["clients/failed"] == 1
        assert run(tmp_path / "ray", overrides, "ray", "executor.num_workers=2") == expected

    def test_a_worker_that_cannot_be_built_says_why(self, tmp_path):
        overrides = [*FEDAVG, *harmful("Unbuildable", tmp_path / "harm", victim=os.getpid())]
        with pytest.raises(UserError, match="trainer must fit every node"):
            run(tmp_path / "ray", overrides, "ray", "executor.num_workers=1")


@pytest.fixture(scope="class")
def nodes():
    """A cluster of others, with one node of one core."""
    from ray.cluster_utils import Cluster as Nodes

    theirs = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield theirs
    theirs.shutdown()


class TestManyNodes:
    def test_a_node_that_is_lost_in_a_fit_changes_nothing(self, nodes, tmp_path, caplog):
        folder = tmp_path / "harm"
        expected = run(tmp_path / "serial", [*FEDAVG, "federation.cohort_size=null"], "serial")
        overrides = [*FEDAVG, *harmful("Stuck", folder)]
        second = nodes.add_node(num_cpus=1)
        (folder / "node").write_text(second.node_id)

        def lose() -> None:
            wait_for((folder / "stuck").exists)
            nodes.remove_node(second, allow_graceful=False)

        thread = threading.Thread(target=lose)
        thread.start()
        found = run(
            tmp_path / "ray", overrides, "ray", "executor.num_workers=2", f"executor.address={nodes.address}"
        )
        thread.join()
        assert found == expected
        assert caplog.text.count("was lost; it runs again") == 1

    def test_a_cluster_that_was_joined_stays(self, nodes):
        """It has served the run of the test before."""
        assert not ray.is_initialized()
        again = Cluster(nodes.address)
        again.open(num_cpus=1)
        # The lost one is noticed by its workers first, and by the cluster in a while.
        wait_for(lambda: [node["Alive"] for node in ray.nodes()].count(True) == 1)
        again.close()

    def test_workers_that_fit_no_node_are_refused(self, nodes, tmp_path):
        overrides = [f"executor.address={nodes.address}", "executor.threads_per_worker=2"]
        with pytest.raises(
            UserError, match=r"must fit a node of the Ray cluster, but none has 2 CPU cores and 0 GPUs"
        ):
            run(tmp_path, FEDAVG, "ray", *overrides)
        assert not ray.is_initialized()


@pytest.mark.parametrize(("address", "said"), [("127.0.0.1:1025", ""), ("auto", r" \(127\.0\.0\.1:1026\)")])
def test_an_address_without_a_cluster_is_refused(tmp_path, monkeypatch, address, said):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1026")  # where a cluster was, as Ray's own file would say
    with pytest.raises(
        UserError, match=rf"^executor\.address must name a Ray cluster .*'{address}'{said} does not"
    ):
        run(tmp_path, FEDAVG, "ray", f"executor.address={address}")


def processes_with(mark):
    """Command lines of all processes that have started with a text in their environment, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().decode()
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads processes off /proc")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_early_leaves_no_process(signum, tmp_path):
    run_dir = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "fedfeat", *merged(FEDAVG), "executor=ray", "executor.num_workers=2"),
        *("federation.num_rounds=1000000", f"hydra.run.dir={run_dir}"),
    ]
    environment = {**os.environ, "FEDFEAT_ROOT": str(tmp_path)}
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=stderr
        )
        try:
            wait_for(lambda: process.poll() is not None or (run_dir / "checkpoints").exists())
            running = processes_with(str(tmp_path))
            assert any("raylet" in line for line in running.values()), (tmp_path / "stderr").read_text()
            # Ctrl-C reaches all processes of a terminal's job.
            (os.killpg if signum == signal.SIGINT else os.kill)(process.pid, signum)
            assert process.wait(PATIENCE_S) == {signal.SIGINT: 130, signal.SIGKILL: -9}[signum]
        finally:
            process.kill()
            process.wait()
    # After SIGKILL, two of Ray's own agents look for their cluster for another minute before they end.
    agents = "Agent" if signum == signal.SIGKILL else "no agents"
    wait_for(lambda: all(agents in line for line in processes_with(str(tmp_path)).values()))
    (folder,) = {found for line in running.values() for found in re.findall(r"/tmp/fedfeat-ray-\w+", line)}
    if signum == signal.SIGKILL:
        sweep(run_dir)  # as every start does, also that of another test meanwhile
    assert not Path(folder).exists()
    said = (tmp_path / "stderr").read_text()
    assert ("goes on from here" in said) == (signum == signal.SIGINT), said
    assert "ray" not in said.lower().replace("ray: 2 workers of 1 threads each", "")
