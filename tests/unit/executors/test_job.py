import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.errors import ClientError
from fedfeat.executors.codec import Packer
from fedfeat.executors.job import Job


def job(costs, size=9):
    """A job whose arguments are made up, and the places that were asked for."""
    asked = []
    return Job(
        "fit", lambda place: asked.append(place) or (f"task {place}",), costs, size, Packer(list)
    ), asked


def finish(found, place, result):
    found.arguments(place)
    found.put(place, result)


def started(window, count):
    return [window.next() for _ in range(count)]


def test_the_longest_starts_first_and_the_earlier_of_equals():
    assert started(job([1.0, 5.0, 2.0, 5.0], 4)[0], 5) == [1, 3, 2, 0, None]


def test_nothing_starts_beyond_the_window():
    """Of 5 tasks, 3 from the oldest unfinished one on: the long one at the end has to wait for the first two."""
    window = job([1.0, 1.0, 2.0, 1.0, 9.0], 3)[0]
    assert started(window, 4) == [2, 0, 1, None]
    finish(window, 2, "c")
    assert list(window.results()) == []
    assert window.next() is None
    finish(window, 0, "a")
    assert list(window.results()) == ["a"]
    assert started(window, 2) == [3, None]
    finish(window, 1, "b")
    assert list(window.results()) == ["b", "c"]
    assert window.next() == 4


def test_a_window_without_tasks_is_done():
    window = job([], 2)[0]
    assert window.done
    assert window.next() is None


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.floats(0, 10), max_size=12),
    size=st.integers(1, 6),
    workers=st.integers(1, 4),
    data=st.data(),
)
def test_every_task_starts_once_and_comes_out_in_order_whatever_finishes_first(costs, size, workers, data):
    window, running, seen, out = job(costs, size)[0], [], [], []
    while not window.done:
        while len(running) < workers and (place := window.next()) is not None:
            running.append(place)
            seen.append(place)
        finished = running.pop(data.draw(st.integers(0, len(running) - 1)))
        finish(window, finished, finished)
        out += window.results()
        assert len(window._results) < size
    assert out == list(range(len(costs)))
    assert sorted(seen) == out


def test_a_result_is_handed_out_once():
    window = job([1.0], 1)[0]
    finish(window, window.next(), "a")
    assert list(window.results()) == ["a"]
    assert list(window.results()) == []
    assert window.done


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_longest_first_ends_earlier_than_cohort_order(workers):
    """Four short tasks and one as long as all of them: started last, it would double the round."""
    costs = [1.0, 1.0, 1.0, 1.0, 4.0]
    window, busy = job(costs, 5)[0], [0.0] * workers
    while (place := window.next()) is not None:
        free = busy.index(min(busy))
        busy[free] += costs[place]
    assert max(busy) == max(sum(costs) / workers, 4.0)


def test_a_task_is_asked_for_once_however_often_it_is_lost():
    found, asked = job([1.0, 5.0])
    for is_left in (True, True, False):
        assert found.next() == 1
        assert found.arguments(1) == ("task 1",)
        assert found.lose(1) is is_left
    found.put(1, "b")
    assert found.next() == 0
    finish(found, 0, "a")
    assert list(found.results()) == ["a", "b"]
    assert found.done
    assert asked == [1, 0]


def test_of_lost_tasks_the_one_lost_first_runs_first():
    found, _ = job([1.0, 1.0, 1.0])
    places = [found.next(), found.next()]
    for place in reversed(places):
        found.arguments(place)
        found.lose(place)
    assert [found.next(), found.next(), found.next()] == [1, 0, 2]


def test_a_worker_that_takes_no_lost_task_takes_others_and_those_given_back():
    found, _ = job([1.0, 1.0, 1.0])
    lost, given_back = found.next(), found.next()
    found.arguments(lost)
    found.lose(lost)
    found.give_back(given_back)
    assert [found.next(lost=False) for _ in range(3)] == [given_back, 2, None]
    assert found.next() == lost


def test_nothing_is_held_for_a_task_that_has_its_result():
    found, _ = job([1.0])
    found.arguments(found.next())
    found.put(0, "a")
    with pytest.raises(KeyError):
        found.put(0, "again")


def test_a_failed_client_is_a_result_and_any_other_error_is_raised_in_its_place():
    found, _ = job([1.0] * 4)
    error = ClientError("Client 1 failed.")
    for place, result in ((3, "d"), (2, KeyError("c")), (1, error), (0, "a")):
        finish(found, place, result)
    results = found.results()
    assert [next(results), next(results)] == ["a", error]
    with pytest.raises(KeyError, match="c"):
        next(results)


def test_results_are_opened_when_their_time_has_come():
    found, _ = job([1.0, 1.0])
    opened = []
    for place in (1, 0):
        finish(found, place, place)
        list(found.results(lambda result: opened.append(result)))
        assert opened == ([] if place else [0, 1])
