"""Keys that stand where nothing reads them: what is said besides, so that the right one is found."""

import re

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException

import fedfeat
from fedfeat.commands.python import composed
from fedfeat.config.explain import explain
from fedfeat.config.hints import unknown_key
from fedfeat.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("partition.alpha=0.3", "; it is a key of partition=client_dirichlet, partition=dirichlet, "
         "partition=dirichlet_uncapped and partition=quantity_skew."),  # the third has it from the second
        ("algorithm.client.mu=0.1", "; it is a key of algorithm/client=fedfusion_fedprox, "
         "algorithm/client=fednova_fedprox, algorithm/client=fedprox, algorithm/client=moon, "
         "algorithm/client=pfedme and algorithm/client=scaffold_fedprox."),
        ("algorithm=fedavg structure.groups=4", "; it is a key of structure=grouped and structure=trimmed."),
        ("data.loader.signal=1", "; it is a key of data=synthetic."),
        ("logger=csv logger.wandb.project=p", "; it is a key of logger=all, logger=wandb and logger=wandb_offline."),
        ("federation.rounds=3", "; did you mean num_rounds?"),
        ("modle=vgg9", "; did you mean model?"),
        ("optimizer.nesterov=true", "; further arguments of torch.optim.SGD are given as "
         "+optimizer.nesterov=<value>."),
        ("lr=0.1", "; there is optimizer.lr."),
        ("depth=2", "; there is structure.depth."),  # rather than paths, which is like it
        ("algorithm=fedprox algorithm.mu=1", "; there is algorithm.client.mu."),
        ("data.num_train=5", "; there is data.loader.num_train."),
        ("_partial_=true", "scenario, diagnostics, logger, paths."),
        ("paths.zzz=1", "known there: root, data, logs, cache."),
    ],
)  # fmt: skip
def test_the_sentence_ends_with_where_the_key_is_known(words, end):
    with pytest.raises(ConfigCompositionException) as caught:
        composed(words.split())
    said = explain(caught.value)
    key, _, rest = said.partition(" must ")
    assert words.split()[-1].startswith(key)
    assert rest.startswith("be a known key, but there is none of that name; known there: ")
    assert said.endswith(end), said


def test_of_many_options_that_have_a_key_only_the_number_is_given():
    said = str(unknown_key("algorithm.client.softmax_scope", ["model"]))
    assert re.search(r"; it is a key of \d\d options of algorithm/client\.$", said)


def test_a_part_names_the_options_that_have_its_key_too():
    assert str(unknown_key("schedule.gamma", ["floor"])).endswith(
        "; it is a key of schedule=exponential, schedule=milestones and schedule=step."
    )


def test_a_key_that_a_preset_sets_is_not_the_user_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["experiment=digits_10x3", "partition=dirichlet", "trainer=cpu"]
    preset = "it is a key of .*, and experiment=digits_10x3 sets it; ~partition\\.classes_per_client takes it away\\.$"
    with pytest.raises(ConfigError, match=preset):
        fedfeat.build(words)
    with pytest.raises(ConfigError, match=r"^partition\.classes_per_client .*; it is a key of [^;]*\.$"):
        fedfeat.build([*words, "partition.classes_per_client=3"])


def test_the_preset_of_an_earlier_configuration_is_not_taken_for_that_of_one_which_cannot_be_composed(
    monkeypatch,
):
    monkeypatch.setattr(HydraConfig.instance(), "cfg", composed(["experiment=digits_10x3"]))
    with pytest.raises(ConfigCompositionException) as caught:
        composed(["partition.alpha=0.3"])
    assert "digits_10x3" not in explain(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("+model=vgg9", "model must be chosen once, but it is twice; a group that has an option takes another as "
         "model=<name>, and --multirun goes through several with commas between."),
        ("seed=1,2", "seed must be one value, but it is 1,2; --multirun goes through several, and a list stands in "
         "[ ]."),
        ("algorithm=fed2,fedavg", "algorithm must be one value, but it is fed2,fedavg; --multirun goes through "
         "several, and a list stands in [ ]."),
        ("+model.hidden=3", "model.hidden must be given without a + where it has a value already."),
        ("~seeed", "seeed must have a value to be deleted, but it has none."),
        ("~model.seeed", "model.seeed must have a value to be deleted, but it has none."),
        ("algorithm=[fed2,fedavg]", "algorithm/server must be chosen once, but it is twice; a group that has an option "
         "takes another as algorithm/server=<name>, and --multirun goes through several with commas between."),
        ("algorithm=[fedavg,fed2]", "algorithm/client must be chosen once, but it is twice; a group that has an option "
         "takes another as algorithm/client=<name>, and --multirun goes through several with commas between."),
    ],
)  # fmt: skip
def test_a_second_choice_or_value(words, sentence):
    with pytest.raises(ConfigCompositionException) as caught:
        composed(words.split())
    assert explain(caught.value) == sentence


@pytest.mark.parametrize(
    ("value", "known", "end"),
    [
        ("FedAvg", ["fedavg", "fedavg_restricted"], "; did you mean fedavg?"),
        ("t1_vgg9", ["fed2/t1_vgg9", "iid"], "; did you mean fed2/t1_vgg9?"),
        ("xyz", ["fedavg"], "."),
        (3, ["4"], "."),
        ("norm", ["norm", "head.norm"], "; did you mean head.norm?"),
        ("norm", ["norm"], "."),
    ],
)
def test_what_may_be_meant(value, known, end):
    assert (
        str(ConfigError.rule("key", "be a name", value, known))
        == f"key must be a name, but it is {value!r}{end}"
    )
