"""Where the time of a run goes, by a clock that moves only where it is told to."""

import itertools
import threading
import types

import pytest

from plm_jax.runs.goodput import Ledger
from tests.support.clock import Clock


@pytest.fixture
def clock():
    return Clock(100.0)


def step(ledger: Ledger, clock: Clock, number: int, seconds: float) -> None:
    clock.now += seconds
    ledger.stepped(number)


def test_the_parts_sum_to_the_whole_and_each_has_what_it_took(clock):
    ledger = Ledger(before=7.0, clock=clock)
    clock.now += 3
    with ledger.spending("steps"):
        ledger.begin(20)
        with ledger.spending("compile"):
            clock.now += 40
        for number in range(21, 31):
            step(ledger, clock, number, 2)
        with ledger.spending("validation"):
            clock.now += 5
        with ledger.saves():
            clock.now += 4
        step(ledger, clock, 31, 2)
        clock.now += 0.5  # Of a step that has not ended.
        state = ledger.state()
    assert state.seconds == {"start": 10, "compile": 40, "data": 0, "steps": 22.5, "saves": 4, "validation": 5}
    assert sum(state.seconds.values()) == clock.now - 100 + 7
    assert (state.first_step, state.step, state.worked, state.marks) == (20, 31, 22, [[30, 20]])
    assert (state.part, state.median, state.since, state.idle) == ("steps", 2, 0.5, 0.5)
    clock.now += 1
    assert ledger.state().seconds["start"] == 11


def test_marks_of_saves_stay_few_and_the_last_ones_exact(clock):
    ledger = Ledger(clock=clock)
    with ledger.spending("steps"):
        ledger.begin(0)
        for number in range(1, 1001):
            step(ledger, clock, number, 1)
            with ledger.saves():
                clock.now += 1
    marks = ledger.state().marks
    assert len(marks) <= 64 and marks[-30:] == [[number, number] for number in range(971, 1001)]
    assert marks == sorted(marks)


def test_a_wait_for_data_counts_from_when_the_devices_have_nothing_to_do(clock):
    """A batch that takes ten seconds, beside a step that takes four of them."""
    ledger = Ledger(clock=clock)
    result = types.SimpleNamespace(block_until_ready=lambda: None)

    def batches():
        yield "first"
        clock.now += 4
        ledger.dispatched(result)
        while ledger._running.until(-1.0) == -1.0:  # Until the thread that waits for the devices has seen the end.
            pass
        clock.now += 6
        yield "second"

    with ledger.spending("steps"):
        assert list(ledger.awaited(batches())) == ["first", "second"]
    assert ledger.state().seconds["data"] == 6 and ledger.state().seconds["steps"] == 4
    ledger.close()


def test_while_the_devices_compute_no_wait_counts(clock):
    ledger = Ledger(clock=clock)
    release = threading.Event()
    ledger.dispatched(types.SimpleNamespace(block_until_ready=release.wait))

    def batches():
        clock.now += 10
        yield "one"

    with ledger.spending("steps"):
        assert list(ledger.awaited(batches())) == ["one"]
    release.set()
    assert ledger.state().seconds["data"] == 0 and ledger.state().seconds["steps"] == 10
    ledger.close()


def test_waits_while_the_devices_compute_never_sum_to_less_than_nothing():
    """Time passes between any two reads of the clock, in amounts whose sums are rounded."""
    times = itertools.accumulate(itertools.repeat(0.1))
    ledger = Ledger(clock=lambda: next(times))
    release = threading.Event()
    ledger.dispatched(types.SimpleNamespace(block_until_ready=release.wait))
    with ledger.spending("steps"):
        for _ in ledger.awaited(range(20)):
            assert ledger.state().seconds["data"] == 0
    release.set()
    ledger.close()


def test_a_step_of_ten_times_the_median_is_told_with_what_was_waited_for(clock):
    ledger = Ledger(clock=clock)
    with ledger.spending("steps"):
        ledger.begin(0)
        for number in range(1, 6):
            step(ledger, clock, number, 0.5)
        assert ledger.state().slow_at == 5
        with ledger.saves():
            clock.now += 60  # A save is no step.
        step(ledger, clock, 6, 0.5)
        with ledger.spending("data"):
            clock.now += 5
        step(ledger, clock, 7, 0.5)
        step(ledger, clock, 8, 4.5)
    slow = ledger.slow.get_nowait()
    assert (slow.step, slow.seconds, slow.median, slow.data) == (7, 5.5, 0.5, 5) and ledger.slow.empty()
