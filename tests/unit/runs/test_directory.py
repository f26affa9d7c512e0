"""What is written of a run's configuration."""

import pytest
import yaml

from fedfeat.errors import CheckpointError
from fedfeat.runs import directory as rundir


def test_no_password_of_an_address_is_written_down(tmp_path):
    address = "https://me:s3cret@host:5000/a"
    overrides = f"- logger.mlflow.tracking_uri={address}\n"
    rundir.write_config(
        tmp_path, f"logger: {{mlflow: {{tracking_uri: '{address}'}}}}\n", {"overrides.yaml": overrides}
    )
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(texts) == 2
    assert all("://***@host:5000/a" in text and "s3cret" not in text for text in texts)
    told = rundir.without_passwords({"logger": [{"uri": address}], "lr": 0.1, "at": "sqlite:///a@b:c.db"})
    assert told == {"logger": [{"uri": "https://***@host:5000/a"}], "lr": 0.1, "at": "sqlite:///a@b:c.db"}


def test_a_run_with_a_password_goes_on_and_the_refusal_of_another_does_not_say_it(tmp_path):
    def config(at, lr=0.1):
        return {"data": {"loader": {"url": f"https://me:s3cret@{at}/x"}}, "optimizer": {"lr": lr}}

    rundir.write_config(tmp_path, yaml.safe_dump(config("host")), {})
    rundir.check_same_config(tmp_path, config("host"))
    with pytest.raises(
        CheckpointError, match=r"url='https://\*\*\*@host/x' instead of 'https://\*\*\*@other/x'"
    ):
        rundir.check_same_config(tmp_path, config("other"))
    with pytest.raises(CheckpointError, match=r"optimizer\.lr=0\.1 instead of 0\.2"):
        rundir.check_same_config(tmp_path, config("host", lr=0.2))
