"""Which metric a run gives to Hydra's optimizers."""

import pytest

from fedfeat.config.objective import check_objective, objective_of, will_come
from fedfeat.errors import ConfigError

TESTED = {"global/acc": 0.5, "personal/acc_weighted": 0.6, "comm/up_bytes": 8.0}


def test_validation_comes_before_test_and_a_name_before_both():
    assert objective_of(TESTED | {"val/acc": 0.4}, "auto") == ("val/acc", 0.4)
    assert objective_of(TESTED | {"val/acc": 0.4}, "auto", "personal/acc_weighted") == ("val/acc", 0.4)
    assert objective_of(TESTED, "auto") == ("global/acc", 0.5)
    assert objective_of(TESTED, "auto", "personal/acc_weighted") == ("personal/acc_weighted", 0.6)
    assert objective_of({"personal/acc_weighted": 0.6}, "auto") == ("personal/acc_weighted", 0.6)
    assert objective_of(TESTED | {"val/acc": 0.4}, "comm/up_bytes") == ("comm/up_bytes", 8.0)
    assert objective_of({"val/loss": 1.0}, "auto") is None
    # Nothing right is a result too.
    assert objective_of(TESTED | {"val/acc": 0.0}, "auto") == ("val/acc", 0.0)
    assert objective_of({"val/acc": 0.0}, "val/acc") == ("val/acc", 0.0)
    assert objective_of(TESTED, "auto", "align/agreement") is None


def test_where_the_clients_own_models_are_the_target_their_validation_accuracy_decides():
    both = TESTED | {"val/acc": 0.4, "personal/val_acc_weighted": 0.3, "personal/val_acc_mean": 0.2}
    assert objective_of(both, "auto") == ("val/acc", 0.4)
    assert objective_of(both, "auto", "global/client_acc_mean") == ("val/acc", 0.4)
    assert objective_of(both, "auto", "personal/acc_weighted") == ("personal/val_acc_weighted", 0.3)
    assert objective_of(both, "auto", "personal/acc_mean") == ("personal/val_acc_mean", 0.2)
    assert objective_of(both, "auto", "personal/val_acc_mean") == ("personal/val_acc_mean", 0.2)
    assert objective_of(both, "auto", "local_pre_agg/acc_mean") == ("val/acc", 0.4)
    assert objective_of({"personal/val_acc_weighted": 0.3}, "auto") == ("personal/val_acc_weighted", 0.3)
    cohort = both | {"val/cohort_mean_acc": 0.1}
    assert objective_of(cohort, "auto", "global/cohort_mean_acc") == ("val/cohort_mean_acc", 0.1)


def test_a_metric_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError) as caught:
        objective_of(TESTED, "align/agreement")
    assert str(caught.value) == (
        "objective must be auto or a metric of the last round (comm/up_bytes, global/acc, personal/acc_weighted), "
        "but it is 'align/agreement'."
    )


def config(objective, val_fraction=0.0, diagnostics=None, **federation):
    return {
        "objective": objective,
        "partition": {"val_fraction": val_fraction},
        "federation": federation,
        "diagnostics": diagnostics,
    }


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (config("val/accuracy", 0.1), "be auto or one of val/acc, val/loss, but it is 'val/accuracy'."),
        (config("val/acc"), "be measured (partition.val_fraction above 0 does so), but it is 'val/acc'."),
        (
            config("personal/val_acc_mean"),
            "be measured (partition.val_fraction above 0 does so), but it is 'personal/val_acc_mean'.",
        ),
        (
            config("local_pre_agg/acc_mean", evaluate_local=False),
            "be measured (federation.evaluate_local true does so), but it is 'local_pre_agg/acc_mean'.",
        ),
        (
            config("final_all/acc_mean", final_epochs=None),
            "be measured (federation.final_epochs set does so), but it is 'final_all/acc_mean'.",
        ),
        (
            config("align/agreement"),
            "be measured (diagnostics=alignment does so), but it is 'align/agreement'.",
        ),
        (config("vall/acc", 0.1), "be auto or one of val/acc, val/loss, but it is 'vall/acc'."),
    ],
)
def test_some_are_refused_before_the_run(refused, sentence):
    with pytest.raises(ConfigError) as caught:
        check_objective(refused)
    assert str(caught.value) == f"objective must {sentence}"


@pytest.mark.parametrize(
    ("federation", "sentence"),
    [
        (
            {"target_metric": "final_all/acc_mean", "final_epochs": None},
            "be measured (federation.final_epochs set does so), but it is 'final_all/acc_mean'.",
        ),
        (
            {"target_metric": "local_pre_agg/acc_mean", "evaluate_local": False},
            "be measured (federation.evaluate_local true does so), but it is 'local_pre_agg/acc_mean'.",
        ),
        (
            {"target_metric": "global/accuracy"},
            "be null or one of global/acc, global/loss, global/client_acc_mean, global/client_acc_weighted, "
            "global/client_acc_std, global/client_acc_worst, global/client_acc_p10, but it is 'global/accuracy'.",
        ),
        (
            {"target_metric": "globl/acc"},
            "be null or one of global/acc, global/loss, global/client_acc_mean, global/client_acc_weighted, "
            "global/client_acc_std, global/client_acc_worst, global/client_acc_p10, but it is 'globl/acc'.",
        ),
    ],
)
def test_so_are_targets_that_cannot_be_measured(federation, sentence):
    with pytest.raises(ConfigError) as caught:
        check_objective(config("auto", **federation))
    assert str(caught.value) == f"federation.target_metric must {sentence}"


def test_what_may_come_is_accepted():
    check_objective(config("auto", target_metric="final_all/acc_mean", final_epochs=1))
    check_objective(config("auto", diagnostics={"_target_": "my.Probe"}, target_metric="align/agreement"))
    for name in (
        "auto",
        "global/acc",
        "global/client_acc_worst",
        "personal/acc_mean",
        "train/loss",
        "mine/own",
        "own/acc",
        "vals/temperature",
    ):
        check_objective(config(name))
    check_objective(config("val/acc", 0.1))
    check_objective(config("personal/val_acc_p10", 0.1))
    check_objective(config("final_all/acc_mean", final_epochs=1))
    check_objective(config("local_pre_agg/acc_p10", evaluate_local=True))


@pytest.mark.parametrize("name", ["val/cohort_mean_acc", "global/cohort_mean_loss", "global/A1_acc"])
def test_metrics_of_further_models_are_taken(name):
    check_objective({"objective": name, "partition": {"val_fraction": 0.2}})
    for wrong in (f"{name}c", name.replace("/", "/acc/") + "x", f"personal/{name.rpartition('/')[2]}"):
        with pytest.raises(ConfigError, match="objective must be auto or one of"):
            check_objective({"objective": wrong, "partition": {"val_fraction": 0.2}})


FIRST = ("global/acc", "val/acc", "comm/up_bytes")


@pytest.mark.parametrize(
    "name", ["personal/acc_mean", "global/worst", "val/worst", "comm/all_bytes", "time/x"]
)
def test_what_the_first_evaluation_lacks_of_its_families_will_not_come(name):
    assert not will_come(name, FIRST)


LATER = (
    "global/a_acc val/a_loss local_pre_agg/acc_mean final_all/acc_mean align/agreement train/loss mine/own"
)


@pytest.mark.parametrize("name", LATER.split())
def test_all_else_may_still_come(name):
    assert will_come(name, FIRST)


def test_so_may_the_server_s_model_where_there_is_none_at_first():
    assert will_come("global/acc", ("personal/acc_mean",))
