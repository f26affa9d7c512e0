"""Runs are found wherever links lead, each once."""

from fedfeat.commands.reopen import runs_below
from fedfeat.evidence.watching import watched
from fedfeat.runs.below import holders, walk
from fedfeat.runs.finished import find_runs


def test_links_are_followed_but_not_in_a_circle(tmp_path):
    disk, logs = tmp_path / "disk", tmp_path / "logs"
    for place in (disk / "cell", logs / "b", logs / "a"):
        place.mkdir(parents=True)
        (place / "summary.json").touch()
    (logs / "c").symlink_to(disk)
    (disk / "back").symlink_to(logs)
    (logs / "gone").symlink_to(tmp_path / "nowhere")
    found = [logs / "a", logs / "b", logs / "c" / "cell"]
    assert holders(logs, "summary.json") == found
    assert [place for place, *_ in walk(logs)] == [
        logs,
        logs / "a",
        logs / "b",
        logs / "c",
        logs / "c" / "cell",
    ]


def test_a_linked_run_is_one_of_the_folder(tmp_path):
    place = tmp_path / "disk" / "run"
    place.mkdir(parents=True)
    for name in ("config.yaml", "metrics.csv", "summary.json"):
        (place / name).write_text("")
    (tmp_path / "logs").mkdir()
    linked = tmp_path / "logs" / "linked"
    linked.symlink_to(place)
    assert [one.name for one in watched(tmp_path / "logs")] == ["linked"]
    assert runs_below([tmp_path / "logs"]) == [linked]
    assert find_runs([tmp_path / "logs"])[1][0].startswith(f"{linked}: skipped, unreadable")


def test_a_run_that_is_named_twice_is_one(tmp_path):
    (tmp_path / "all" / "one").mkdir(parents=True)
    (tmp_path / "all" / "one" / "summary.json").touch()
    assert runs_below([tmp_path / "all", tmp_path / "all" / "one"]) == [tmp_path / "all" / "one"]
