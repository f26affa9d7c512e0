"""Shipped settings of FedMA, PFNM and OT fusion: methods/fedma.md#matching, methods/fedma.md#settings,
methods/fedma.md#initial-weights, methods/pfnm.md and methods/ot_fusion.md."""

import pytest
from presets import composed

BBP_MAP = {
    "_target_": "fedfeat.features.matching.BBPMap",
    "sigma2": 1.0,
    "sigma02": 1.0,
    "sweeps": 5,
    "popularity_coef": 1.0,
    "shrink": True,
}


@pytest.mark.parametrize(
    ("algorithm", "client", "server", "gamma", "init"),
    [
        ("fedma", "fedma.FedMAClient", "fedma.FedMAServer", 7.0, "shared"),
        ("fedma_independent", "fedma.FedMAClient", "fedma.FedMAServer", 7.0, "independent"),
        ("fedma_oneshot", "pfnm.PFNMClient", "pfnm.OneShotFedMAServer", 7.0, "shared"),
        ("pfnm", "pfnm.PFNMClient", "pfnm.PFNMServer", 1.0, "shared"),
    ],
)
def test_matching_as_in_the_authors_code(algorithm, client, server, gamma, init):
    found = composed(f"algorithm={algorithm}")["algorithm"]
    assert (found["name"], found["pooled"]) == (algorithm, False)
    assert found["client"]["_target_"] == f"fedfeat.algorithms.{client}"
    assert (found["client"]["softmax_scope"], found["client"]["personal"]) == ("all", [])
    assert found["client"].get("weight_decay", 0.0) == 0.0
    assert found["server"] == {
        "_target_": f"fedfeat.algorithms.{server}",
        "init": init,
        # The one departure from the code: what is fused once is not shrunk in every layer.
        "matching": {**BBP_MAP, "gamma": gamma, "shrink": algorithm != "fedma_oneshot"},
    }


def test_ot_fusion_aligns_to_the_global_model_and_weighs_by_examples():
    found = composed("algorithm=ot_fusion")["algorithm"]
    assert found["client"]["_target_"] == "fedfeat.client.ClientModule"
    assert found["server"] == {
        "_target_": "fedfeat.algorithms.ot_fusion.OTFusionServer",
        "anchor": "global",
        "weighting": "samples",
    }
