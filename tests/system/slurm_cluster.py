"""A SLURM of one's own on this machine: controller, nodes and munge in a folder that is dropped with them."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PATIENCE = 60


def missing():
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]


def _free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def task_of(index):
    """The process in which submitit runs one task of an array."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = b"submitit.core._submit" in words and b"srun" not in words[0]
        if ours and f"SLURM_ARRAY_TASK_ID={index}".encode() in variables:
            return int(folder.name)
    return None


class Cluster:
    """Nodes ``node1``, ``node2``, ..., all of them this machine, and two partitions.

    A job in ``urgent`` drives those in ``main``, the default, out: they get their ``--signal`` at once, SIGTERM after
    ``GraceTime``, and are requeued.
    """

    def __init__(self, nodes=1, cpus=4):
        # Short: the path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)  # munge insists
        self.nodes = [f"node{i + 1}" for i in range(nodes)]
        self._daemons = []
        self._write(cpus)
        plain = {
            key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SUBMITIT_"))
        }
        self.environment = {**plain, "PATH": SEARCHED, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def _write(self, cpus):
        user, folder = getpass.getuser(), self.folder
        control, *ports = _free_ports(1 + len(self.nodes))
        lines = [
            "ClusterName=test",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={control}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            # A requeued job waits at least for cred_expire.
            f"AuthInfo=socket={folder}/munge.socket,cred_expire=5",
            f"StateSaveLocation={folder}/state",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdSpoolDir={folder}/%n",
            f"SlurmdPidFile={folder}/%n.pid",
            f"SlurmdLogFile={folder}/%n.log",
            # Containers rarely have cgroups to give away.
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "MailProg=/bin/true",
            "ReturnToService=2",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            # Believe the CPUs and the memory of the nodes below.
            "SlurmdParameters=config_overrides",
            "KillWait=5",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "SlurmctldParameters=preempt_send_user_signal",
            "AccountingStorageType=accounting_storage/none",
            "JobAcctGatherType=jobacct_gather/none",
            "PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=5",
            "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF",
        ]
        for name, port in zip(self.nodes, ports, strict=True):
            lines.append(
                f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=64000"
            )
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))

    def start(self):
        """Start the daemons and wait until every node is idle."""
        folder = self.folder
        self._launch(
            "munged", "--foreground", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munged.log",
        )  # fmt: skip
        self._await(lambda: (folder / "munge.socket").exists())
        self._launch("slurmctld", "-D")
        self._await(lambda: "is UP" in self.call("scontrol", "ping"))
        for name in self.nodes:
            self._launch("slurmd", "-D", "-N", name)
        self._await(
            lambda: (
                self.call("sinfo", "-h", "-p", "main", "-N", "-o", "%t").split() == ["idle"] * len(self.nodes)
            )
        )

    def stop(self):
        """Cancel all jobs, end the daemons in the order that lets each save its state, drop the folder."""
        end = time.monotonic() + 20
        if len(self._daemons) > 1:
            self.call("scancel", "--user", getpass.getuser())
        while len(self._daemons) > 1 and self.call("squeue", "-h") and time.monotonic() < end:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *command):
        """What a SLURM command prints; nothing where the controller does not answer."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30)
        return done.stdout.strip()

    def submit(self, *arguments, **environment):
        """Submit with sbatch; gives the job's number."""
        done = subprocess.run(
            ["sbatch", "--parsable", *map(str, arguments)],
            env={**self.environment, **environment}, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split(";")[0]

    def _launch(self, name, *options):
        with (self.folder / f"{name}.out").open("a") as out:
            command = [shutil.which(name, path=SEARCHED), *options]
            self._daemons.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=out, stderr=out, start_new_session=True
                )
            )

    def _await(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                logs = "\n".join(path.read_text()[-1500:] for path in self.folder.glob("*.out"))
                raise RuntimeError(f"SLURM does not come up; ended: {dead}; {logs}")
            time.sleep(0.1)
