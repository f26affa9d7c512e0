from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedfeat.data.examples import Dataset
from fedfeat.data.transforms import Transform

CONFIGS = Path(__file__).parents[3] / "configs" / "data"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_data_files_share_one_layout(path):
    with initialize_config_dir(str(CONFIGS.parent), version_base="1.3"):
        cfg = compose("train", [f"data={path.stem}", f"data@public={path.stem}", "paths.root=here"])
    for section in (cfg.data, cfg.public):
        assert section.name == path.stem
        assert set(section) == {"transform", "name", "root", "loader"}
    # Each section is about its own data set, wherever it stands.
    cfg.public.root, cfg.public.name = "there", "another"
    found, public = (
        OmegaConf.to_container(section.loader, resolve=True) for section in (cfg.data, cfg.public)
    )
    assert found.get("root") != "there"
    assert public.get("root", "there") == "there"
    assert public.get("name", "another") == "another"


@pytest.mark.parametrize("path", sorted((CONFIGS / "transform").glob("*.yaml")), ids=lambda path: path.stem)
def test_transform_files_build_what_they_name(path):
    config = OmegaConf.load(path)
    assert config["_target_"] == f"fedfeat.data.transforms.{path.stem}"
    assert isinstance(instantiate(config), Transform)


@pytest.mark.parametrize(("name", "shape"), [("digits", (1, 8, 8)), ("synthetic", (3, 32, 32))])
def test_loaders_without_files_build(name, shape):
    dataset = instantiate(OmegaConf.load(CONFIGS / f"{name}.yaml").loader)
    assert isinstance(dataset, Dataset)
    assert (dataset.name, dataset.input_shape) == (name, shape)
