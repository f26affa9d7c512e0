"""TensorBoard: what a run wrote is read back with TensorBoard's own reader."""

import pytest
from entries import SUMMARY, record, write
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data as start_of
from tensorboard.summary.writer import event_file_writer

from fedfeat.runs.run_words import headline

# TensorBoard and its protobuf warn at import and afterwards; that is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def events(tmp_path, picture, loggers, monkeypatch):
    """What a run left that was resumed after round 1."""
    # Files of one second and process are read in the order of the text of this number: ".10" before ".9".
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    write(
        loggers("tensorboard")["tensorboard"],
        tmp_path,
        [record(0), record(1), record(2, **{"global/acc": 0.9})],
    )
    logger = loggers("tensorboard")["tensorboard"]
    write(logger, tmp_path, [record(2), record(3)], resumed=1, finish=False)
    logger.picture("convergence", picture)
    logger.finish(SUMMARY)
    logger.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"), {"histograms": 0})
    found.Reload()
    return found


def test_scalars_and_pictures_of_a_resumed_run(events, tmp_path):
    scalars = [(event.step, round(event.value, 6)) for event in events.Scalars("global/acc")]
    assert scalars == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    (image,) = events.Images("figures/convergence")
    assert (image.step, image.width, image.height) == (3, 8, 6)
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("final/global/acc")] == [(3, 0.4)]
    assert "name: digits" in (tmp_path / "tensorboard" / "hparams.yaml").read_text()


def test_clients_are_histograms(events):
    found = [(event.step, event.histogram_value.num) for event in events.Histograms("clients/global_acc")]
    assert found == [(0, 2), (1, 2), (2, 2), (3, 2)]


def test_a_metric_that_begins_later_is_a_column_too(tmp_path, loggers):
    first = record(0)
    first.metrics.pop("train/loss")
    write(loggers("tensorboard")["tensorboard"], tmp_path, [first, record(1)])
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    contents = {tag.rpartition("/")[2]: data for tag, data in found.PluginTagToContent("hparams").items()}
    assert parsed(contents["experiment"]) == ["global/acc", "train/loss"]


def test_hparams_are_of_the_run_itself(events, tmp_path):
    """Those of `add_hparams` lie in a folder of their own, which TensorBoard shows as another run."""
    assert [path.name for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()] == []
    contents = {tag.rpartition("/")[2]: data for tag, data in events.PluginTagToContent("hparams").items()}
    assert set(contents) == {"experiment", "session_start_info", "session_end_info"}
    values = {
        name: value.string_value or value.number_value
        for name, value in start_of(contents["session_start_info"]).hparams.items()
    }
    assert values == {"method": "fed2", "data": "digits", "groups": 10, "seed": 3}
    metrics = parsed(contents["experiment"])
    assert metrics == list(headline(record(0).metrics)) == ["global/acc", "train/loss"]
    assert all(name in events.Tags()["scalars"] for name in metrics)


def parsed(content):
    from tensorboard.plugins.hparams.metadata import parse_experiment_plugin_data

    return [info.name.tag for info in parse_experiment_plugin_data(content).metric_infos]
