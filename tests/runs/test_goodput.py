"""Accounting of the time of a run, with a clock that the tests move."""

import itertools
import threading
import types

import pytest

from plm_jax.runs.goodput import Goodput
from tests.support.clock import Clock


@pytest.fixture
def clock():
    return Clock(100.0)


def step(goodput: Goodput, clock: Clock, number: int, seconds: float) -> None:
    clock.now += seconds
    goodput.finish_step(number)


def test_parts_sum_to_the_elapsed_time(clock):
    goodput = Goodput(before=7.0, clock=clock)
    clock.now += 3
    with goodput.measure("steps"):
        goodput.begin(20)
        with goodput.measure("compile"):
            clock.now += 40
        for number in range(21, 31):
            step(goodput, clock, number, 2)
        with goodput.measure("validation"):
            clock.now += 5
        with goodput.measure_save():
            clock.now += 4
        step(goodput, clock, 31, 2)
        clock.now += 0.5  # Of a step that has not ended.
        state = goodput.snapshot()
    assert state.seconds == {
        "start": 10,
        "compile": 40,
        "data": 0,
        "steps": 22.5,
        "saves": 4,
        "validation": 5,
        "audits": 0,
    }
    assert sum(state.seconds.values()) == clock.now - 100 + 7
    assert (state.first_step, state.step, state.worked, state.marks) == (20, 31, 22, [[30, 20]])
    assert (state.part, state.median, state.since, state.idle) == ("steps", 2, 0.5, 0.5)
    clock.now += 1
    assert goodput.snapshot().seconds["start"] == 11


def test_marks_of_saves_are_few_and_the_last_ones_exact(clock):
    goodput = Goodput(clock=clock)
    with goodput.measure("steps"):
        goodput.begin(0)
        for number in range(1, 1001):
            step(goodput, clock, number, 1)
            with goodput.measure_save():
                clock.now += 1
    marks = goodput.snapshot().marks
    assert len(marks) <= 64 and marks[-30:] == [[number, number] for number in range(971, 1001)]
    assert marks == sorted(marks)


def test_waits_for_data_count_once_the_devices_are_idle(clock):
    """A batch that takes ten seconds, beside a step that takes four of them."""
    goodput = Goodput(clock=clock)
    result = types.SimpleNamespace(block_until_ready=lambda: None)

    def batches():
        yield "first"
        clock.now += 4
        goodput.add_dispatched(result)
        while goodput._running.until(-1.0) == -1.0:  # Until the thread that waits for the devices has seen the end.
            pass
        clock.now += 6
        yield "second"

    with goodput.measure("steps"):
        assert list(goodput.measure_batches(batches())) == ["first", "second"]
    assert goodput.snapshot().seconds["data"] == 6 and goodput.snapshot().seconds["steps"] == 4
    goodput.close()


def test_waits_do_not_count_while_the_devices_compute():
    """Time passes between any two reads of the clock; rounding must not make the sum negative."""
    times = itertools.accumulate(itertools.repeat(0.1))
    goodput = Goodput(clock=lambda: next(times))
    release = threading.Event()
    goodput.add_dispatched(types.SimpleNamespace(block_until_ready=release.wait))
    with goodput.measure("steps"):
        for _ in goodput.measure_batches(range(20)):
            assert goodput.snapshot().seconds["data"] == 0
    assert goodput.snapshot().seconds["steps"] > 0
    release.set()
    goodput.close()


def test_slow_steps_are_reported_with_their_waits(clock):
    goodput = Goodput(clock=clock)
    with goodput.measure("steps"):
        goodput.begin(0)
        for number in range(1, 6):
            step(goodput, clock, number, 0.5)
        assert goodput.snapshot().slow_at == 5
        with goodput.measure_save():
            clock.now += 60  # A save is no step.
        step(goodput, clock, 6, 0.5)
        with goodput.measure("data"):
            clock.now += 5
        step(goodput, clock, 7, 0.5)
        step(goodput, clock, 8, 4.5)
    slow = goodput.slow.get_nowait()
    assert (slow.step, slow.seconds, slow.median, slow.data) == (7, 5.5, 0.5, 5) and goodput.slow.empty()
