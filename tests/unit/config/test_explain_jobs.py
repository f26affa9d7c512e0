"""What is said of a job on a cluster that has ended without a result: a sentence, and where its log is."""

import os
import time

import pytest

from fedfeat.config.explain import as_user_error, explain

submitit = pytest.importorskip("submitit", reason="the extra slurm is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


# As text: the module of a test cannot be imported in a job.
TALK_AND_WAIT = """
import sys, time
print("a line of the log\\n" * 30, file=sys.stderr, flush=True)
open({marker!r}, "w").close()
time.sleep(600)
"""


def submitted(folder, *call):
    executor = submitit.LocalExecutor(folder=folder)
    executor.update_parameters(timeout_min=5)
    return executor.submit(*call)


def error_of(job):
    with pytest.raises(submitit.core.utils.UncompletedJobError) as caught:
        job.results()
    return caught.value


@pytest.mark.slow
def test_one_that_was_cancelled(tmp_path):
    job = submitted(tmp_path / "jobs", exec, TALK_AND_WAIT.format(marker=str(tmp_path / "began")))
    deadline = time.monotonic() + 120
    while not (tmp_path / "began").exists():
        assert time.monotonic() < deadline, job.stderr()
        time.sleep(0.05)
    job.cancel()
    error = error_of(job)
    assert str(error).count("a line of the log") == 30
    log = tmp_path / "jobs" / f"{job.job_id}_0_log.err"
    assert explain(error) == (
        f"Job {job.job_id} must end with a result, but it has ended without one (state: {job.state}); its log is {log}."
    )
    assert log.read_text().startswith("a line of the log")
    assert as_user_error(error) is None  # exit code 1: nothing is wrong with the configuration
    for kind in ("err", "out"):
        os.truncate(tmp_path / "jobs" / f"{job.job_id}_0_log.{kind}", 0)
    assert explain(error).endswith(f"; it has left no log in {tmp_path / 'jobs'}.")


def test_one_that_could_not_run(tmp_path):
    job = submitted(tmp_path / "jobs", int, "luck")
    log = tmp_path / "jobs" / f"{job.job_id}_0_log.err"
    error = error_of(job)
    assert "Traceback" in str(error)
    reason = "ValueError: invalid literal for int() with base 10: 'luck'"
    assert explain(error) == f"A job must run, but it has failed ({reason}); its log is {log}."
