"""Runs a command as N processes of one job on this machine.

    python launch/local.py --processes=2 [--devices=4] -- python -m plm_jax pretrain --config=… --workdir=…

`--devices` gives each process this number of simulated CPU devices.

If a process fails, the others are stopped, because they cannot continue without it. If a signal killed the process (for
example when memory ran out), the whole job restarts, up to `--restarts` times per hour. If the process exited with
status 75 (it received a signal and saved its step), the job restarts at once. `pretrain` then resumes from its last
checkpoint. After any other failure, this program ends with the exit status of the failed process.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import jobs

# Seconds from the request to stop to the kill: of a whole job, which may save its step, and of the rest of a job after
# a process failed.
GRACE_SECONDS, LEFT_SECONDS = 130, 10


def free_port() -> int:
    """Returns a free TCP port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(process: int, processes: int, port: int, devices: int) -> dict[str, str]:
    """Returns the environment of a process of the job."""
    job = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(process),
    }
    if devices:
        flag = f"--xla_force_host_platform_device_count={devices}"
        job |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}
    return os.environ | job


def run(command: list[str], processes: int, devices: int) -> int:
    """Runs `command` as a job; returns the status of the first failed process (negative for a signal), or 0."""
    port, running, whole = free_port(), [], True
    try:
        for process in range(processes):
            # In its own group, so that its children are stopped, too.
            job = environment(process, processes, port, devices)
            running.append(subprocess.Popen(command, env=job, process_group=0))
        status = wait(running)
        whole = False
        return status
    finally:
        stop(running, whole)


def wait(running: list[subprocess.Popen]) -> int:
    """Waits until all have ended or one has failed; returns its status, or 0."""
    alive = {process.pid: process for process in running}
    while alive:
        # The first failure is the cause; the others fail because that process is gone.
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
        if dead not in alive:  # The first process of a container inherits the children of processes that have ended.
            os.waitpid(dead, 0)
        elif status := alive.pop(dead).wait():
            return status
    return 0


def stop(running: list[subprocess.Popen], whole: bool) -> None:
    """Stops a whole job, or the rest of one: first with SIGTERM, then with SIGKILL."""
    send(signal.SIGTERM, running)
    if not whole:  # A step that waits for a dead process never ends; the second request does not wait for it.
        time.sleep(0.2)
        send(signal.SIGTERM, running)
    deadline = time.monotonic() + (GRACE_SECONDS if whole else LEFT_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        for process in running:
            process.wait(max(0.0, deadline - time.monotonic()))
    send(signal.SIGKILL, running)
    for process in running:
        process.wait()


def send(number: signal.Signals, running: list[subprocess.Popen]) -> None:
    """Sends a signal to every process group that still has a member."""
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def launch(command: list[str], processes: int, devices: int, restarts: int) -> int:
    """Runs the job, and restarts it if a signal ended it; returns its last status, negative for a signal."""
    allowed = jobs.Restarts(restarts)
    while True:
        status = run(command, processes, devices)
        if status == jobs.SAVED:
            jobs.say("the job received a signal and saved its step: restarting it")
        elif status < 0 and allowed.take():
            name = signal.Signals(-status).name
            jobs.say(f"{name} killed a process: restarting the job (at most {restarts} times per hour)")
        else:
            return status


def main() -> None:
    """Parses the command line and runs the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, required=True, help="number of processes")
    parser.add_argument("--devices", type=int, default=0, help="number of CPU devices per process; 0: do not change it")
    parser.add_argument(
        "--restarts", type=int, default=3, help="maximum number of restarts per hour after a signal killed a process"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command to run, after --")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command or arguments.processes < 1 or arguments.restarts < 0:
        parser.error("pass --processes=N (at least 1), --restarts=N (at least 0) and, after --, the command")
    if not shutil.which(command[0]):
        parser.error(f"there is no program '{command[0]}': pass the command after --")
    # Stopping this command stops the job.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    status = launch(command, arguments.processes, arguments.devices, arguments.restarts)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
