"""TensorBoard: events are read back."""

import warnings

from entries import SUMMARY, record, write

from fedfeat.loggers.tensorboard_logger import TensorBoardLogger


def test_tensorboard_events_can_be_read_back(tmp_path, picture):
    # TensorBoard and its protobuf warn at import; that is theirs.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        logger = TensorBoardLogger()
        write(logger, tmp_path, [record(0), record(1), record(2, **{"global/acc": 0.9})])
        logger = TensorBoardLogger()
        write(logger, tmp_path, [record(2), record(3)], resumed=1, finish=False)
        logger.picture("convergence", picture)
        logger.finish(SUMMARY)
        logger.close()
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
    found = [(event.step, round(event.value, 6)) for event in events.Scalars("global/acc")]
    assert found == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    (image,) = events.Images("convergence")
    assert (image.step, image.width, image.height) == (3, 8, 6)
