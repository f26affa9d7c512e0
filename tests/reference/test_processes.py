"""Tasks in several processes: the weights and metrics of one process bit for bit, for every algorithm."""

import pytest
from executor_cases import CASES, run, serial

from fedfeat.errors import ConfigError


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_has_the_weights_and_metrics_of_one_process(name, tmp_path):
    found = run(tmp_path, CASES[name], "processes", "executor.num_processes=2")
    assert found == serial(name)


@pytest.mark.parametrize(("processes", "window"), [(1, None), (4, None), (3, 1), (3, 2)])
def test_neither_the_number_of_processes_nor_the_window_matters(processes, window, tmp_path):
    settings = [f"executor.num_processes={processes}", f"executor.window={window or 'null'}"]
    assert run(tmp_path, CASES["fedavg"], "processes", *settings) == serial("fedavg")


def test_the_suite_evaluates_models_right_after_their_fits():
    """FedHeNN's are the personal ones; FedRep's have their bodies averaged afterwards."""
    for name, same in (("fedhenn_hetero", True), ("fedrep", False)):
        _, final = serial(name)
        own, after = ({key: final[f"{kind}/acc_{key}"] for key in ("mean", "weighted", "worst")}
                      for kind in ("personal", "local_pre_agg"))  # fmt: skip
        assert (own == after) == same


def test_the_suite_trains(tmp_path):
    """A case whose weights stayed what they were would agree with everything."""
    trained = serial("fedavg")[0]
    untrained = run(tmp_path / "b", CASES["fedavg"], "serial", "federation.num_rounds=0")[0]
    other = run(tmp_path / "c", CASES["fedavg"], "serial", "seed=1")[0]
    assert len({trained, untrained, other}) == 3


def test_more_threads_than_one_are_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, CASES["fedavg"], "processes", "trainer.num_threads=2")
    sentence = "trainer.num_threads must be 1 or null for executor=processes, but it is 2."
    assert str(caught.value) == sentence
