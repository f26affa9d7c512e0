"""What is written of a run's configuration."""

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
