"""What is counted in a run."""

from fedfeat.rounds.tally import COUNTERS, Meter, Tally


def test_what_a_server_half_spends_is_given_once():
    meter = Meter()
    meter.spend(2.0)
    meter.spend(3.0)
    assert meter.drained() == 5.0
    assert meter.drained() == 0.0
    meter.spend(1.0)
    assert meter.drained() == 1.0


def test_each_count_goes_to_its_own_counter_and_on_from_round_to_round():
    counters = dict.fromkeys(COUNTERS, 0.0)
    for _ in range(2):
        tally = Tally(counters)
        tally.sent(7)
        tally.received(5)
        tally.computed(11.0, 3)
        tally.computed(2.0)
        tally.spent("fit", 0.5)
        assert tally.closed() is counters
    expected = {"comm/down_bytes": 14, "comm/up_bytes": 10, "comm/total_bytes": 24}
    expected |= {"compute/flops": 26.0, "compute/examples": 6, "time/fit_s": 1.0}
    assert counters == dict.fromkeys(COUNTERS, 0.0) | expected
