"""Every method under what presets use, stacked, against `serial` in float64; the table of docs/performance.md."""

from pathlib import Path

import pytest
from float64_runs import assert_stacks, run
from stacked_cells import ADAM, METHODS, PRESET, RAGGED, REFUSED, SETTINGS, table, words

from fedfeat.config.choices import CONFIGS
from fedfeat.errors import UserError

# A division by the root of a second moment that is nothing but rounding, as of a bias in front of batch norm, and
# steps of Adam at the server, enlarge the last bits.
TOLERANCE = {ADAM: 1e-6}
CELLS = [(method, setting) for method in METHODS for setting in SETTINGS if (method, setting) not in REFUSED]


@pytest.mark.parametrize(("method", "setting"), [cell for cell in CELLS if cell[1] == PRESET])
def test_what_presets_use_gives_the_weights_of_serial(method, setting, tmp_path):
    assert_stacks(tmp_path, *words(method, setting), tolerance=1e-10 if method == "feddf" else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "setting"), [cell for cell in CELLS if cell[1] != PRESET])
def test_the_other_cells_give_the_weights_of_serial(method, setting, tmp_path):
    assert_stacks(tmp_path, *words(method, setting), tolerance=TOLERANCE.get(setting, 1e-12))


@pytest.mark.parametrize(("method", "setting"), REFUSED)
def test_the_other_cells_have_their_sentence(method, setting, tmp_path):
    with pytest.raises(UserError) as caught:
        run(tmp_path, *words(method, setting), "executor=vectorized")
    assert REFUSED[method, setting] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_table_of_the_documentation_is_that_of_these_tests():
    page = Path(__file__).parents[2] / "docs" / "performance.md"
    assert "\n".join(table()) in page.read_text(encoding="utf-8")


def test_every_client_half_is_in_the_table():
    """One of its names is; `pfnm`, whose clients have unequal widths too, is refused in test_vectorized_methods."""
    halves = {path.stem for path in (CONFIGS / "algorithm").glob("*.yaml")}
    assert set(METHODS) <= halves
    variants = (
        "_code",
        "_mu",
        "_uniform",
        "_restricted",
        "_unpaired",
        "_literal",
        "_fedadam",
        "_oneshot",
        "_independent",
    )
    others = {name for name in halves - set(METHODS) if not any(part in name for part in variants)}
    assert others == {"centralized", "fedadagrad", "fedyogi", "fedfusion", "pfnm"}


def test_a_setting_is_what_it_says():
    assert "partition=quantity_skew" in SETTINGS[RAGGED]
    assert words("fednova", PRESET).count("federation.opt_state=keep") == 0
    assert words("fedavg", PRESET).count("federation.opt_state=keep") == 1
