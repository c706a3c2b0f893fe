"""What is said while something takes long, on a terminal and in a log."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from plm_jax.common import progress
from plm_jax.runs import telemetry

# Says what it does until its second word has been heard, whichever the terminal or pipe is.
PROGRAM = """
import sys
from plm_jax.common import progress
progress.SILENCE_SECONDS = 0
progress.pause = lambda seconds, terminal: 0.01
with progress.doing("loading"):
    sys.stdin.readline()
print("done")
"""


def test_a_log_gets_lines_and_a_terminal_one_that_counts():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert [process.stderr.readline() for _ in range(2)] == ["loading: 0 s so far\n"] * 2, "while it goes on"
    out, err = process.communicate("\n")
    assert out == "done\n" and "\r" not in err and re.fullmatch(r"loading: \d+ s", err.splitlines()[-1])

    main, side = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=side, stderr=side)
    os.close(side)
    printed = b""
    while printed.count(b"\rloading: 0 s") < 2:
        printed += os.read(main, 999)
    assert b"\n" not in printed
    process.communicate(b"\n")
    printed += os.read(main, 999)
    os.close(main)
    assert re.fullmatch(rb"(\rloading: \d+ s)+\r\ndone\r\n", printed)


def test_what_is_quick_and_all_but_the_first_process_are_silent(monkeypatch, capfd):
    with progress.doing("a"):
        pass
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0)
    for name in ("JAX_PROCESS_ID", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
        assert not progress.is_first()
        with progress.doing("b"):
            time.sleep(0.05)
        monkeypatch.delenv(name)
    assert progress.is_first() and capfd.readouterr().err == ""


def test_on_gke_the_first_process_is_that_of_the_first_machine_of_the_first_slice(monkeypatch):
    for name in ("TPU_WORKER_ID", "MEGASCALE_SLICE_ID"):
        monkeypatch.setenv("PLM_JAX_DISTRIBUTED", "1")
        monkeypatch.setenv(name, "1")
        assert not progress.is_first()
        monkeypatch.setenv("PLM_JAX_DISTRIBUTED", "")  # A machine of a slice that is used alone.
        assert progress.is_first()
        monkeypatch.setenv(name, "0")


def test_a_line_is_ended_before_an_error_is_told(monkeypatch, capfd):
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0)
    printed = []
    with pytest.raises(ZeroDivisionError), progress.doing("dividing"):
        while not printed:
            printed += capfd.readouterr().err
        _ = 1 / 0
    assert capfd.readouterr().err.endswith("dividing: 0 s\n")


def test_the_bar_of_a_run_is_drawn_while_a_step_compiles(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(progress, "pause", lambda seconds, terminal: 0.5)
    printed = ""
    with telemetry.Telemetry(str(tmp_path), 0, 10) as told:
        told.progress(1, 2.5, None)
        with told.doing("compiling step 2", reports=True):
            while not re.search(r"1/10 .*compiling step 2, \d+ s", printed):
                printed += capfd.readouterr().err
        told.progress(2, 2.25, 1000.0)
    printed += capfd.readouterr().err
    assert re.search(r"^compiling step 2: \d+\.\d s$", printed, re.MULTILINE) and "\r" not in printed
    assert "loss 2.2500, 1,000 tokens/s" in printed.splitlines()[-1]


def test_the_remaining_time_leaves_out_compilation(tmp_path, monkeypatch):
    """A first step of 100 s, with a compilation, then steps of 2 s, one of them with another compilation of 50 s."""
    clock = [1000.0]
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: clock[0])
    with telemetry.Telemetry(str(tmp_path), 0, 100) as log:
        bar = log._bar
        with log.doing("compiling step 1", reports=True):
            clock[0] += 98
        clock[0] += 2
        log.progress(1, 2.5, None)
        assert bar.format_dict["rate"] == 0  # Unknown.
        for step in (2, 3):
            clock[0] += 2
            log.progress(step, 2.5, 1000.0)
        assert bar.format_dict["rate"] == pytest.approx(1 / 2)
        with log.doing("compiling step 4", reports=True):
            clock[0] += 50
        clock[0] += 2
        log.progress(4, 2.5, None)
        assert bar.format_dict["rate"] == pytest.approx(1 / 2)
        assert re.search(r"4/100 \[\d\d:\d\d<03:12, ", str(bar))  # 96 steps of 2 s.
