"""What ``executor=ray`` refuses before anything is started, and what fits a node."""

import sys

import pytest
from harness import parties

from fedfeat.errors import ConfigError, UserError


def test_without_ray_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedfeat.executors.on_ray.executor", raising=False)
    with pytest.raises(UserError, match=r"^executor must be another one .*--extra ray.* but it is 'ray'\.$"):
        import fedfeat.executors.on_ray.executor  # noqa: F401


class TestWithRay:
    @pytest.fixture(autouse=True)
    def _needs_ray(self):
        pytest.importorskip("ray", reason="executor=ray needs the extra `ray`, which is not installed")

    @pytest.mark.parametrize("gpus", [0.5, 1.0, -1.0])
    def test_gpus_without_a_gpu(self, gpus, tmp_path):
        from fedfeat.executors.on_ray.executor import RayExecutor

        worker = parties(tmp_path).executor.worker
        with pytest.raises(
            ConfigError, match=r"^executor\.gpus_per_worker must be 0 or null .* 'cpu', but it is"
        ):
            RayExecutor(lambda: worker, gpus_per_worker=gpus)

    @pytest.mark.parametrize(
        ("cpus", "gpus", "resources", "expected"),
        [
            (1, 0.0, {"CPU": 8.0}, 8),
            (3, 0.0, {"CPU": 8.0}, 2),
            (9, 0.0, {"CPU": 8.0}, 0),
            (1, 0.25, {"CPU": 8.0, "GPU": 1.0}, 4),
            (1, 0.1, {"CPU": 64.0, "GPU": 4.0}, 40),
            (1, 0.3, {"CPU": 64.0, "GPU": 2.0}, 6),  # three on each, none on what is left of both
            (4, 0.25, {"CPU": 8.0, "GPU": 8.0}, 2),
            (1, 1.0, {"CPU": 8.0}, 0),
        ],
    )
    def test_workers_that_fit_a_node(self, cpus, gpus, resources, expected):
        from fedfeat.executors.on_ray.cluster import Needs

        assert Needs(cpus, gpus).fitting(resources) == expected
