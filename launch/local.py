"""Runs a command as N processes of one job on this machine.

    python launch/local.py --processes=2 [--devices=4] -- python -m plm_jax.pretrain --config=… --workdir=…

`--devices` gives each process that many CPU devices. When one process fails the others are stopped, and its exit
status is this command's.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(process: int, processes: int, port: int, devices: int) -> dict[str, str]:
    """The environment of one process of the job."""
    job = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(process),
    }
    if devices:
        flag = f"--xla_force_host_platform_device_count={devices}"
        job |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}
    return os.environ | job


def launch(command: list[str], processes: int, devices: int) -> int:
    """Runs `command` as a job; the exit status of the first process that fails, or 0."""
    port = free_port()
    running = [subprocess.Popen(command, env=environment(i, processes, port, devices)) for i in range(processes)]
    try:
        while any(process.poll() is None for process in running):
            failed = [process.returncode for process in running if process.poll()]
            if failed:
                return failed[0]
            time.sleep(0.1)
        return next((process.returncode for process in running if process.returncode), 0)
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> None:
    """Parses the command line and runs the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--devices", type=int, default=0, help="CPU devices a process; 0: leave as it is")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command or arguments.processes < 1:
        parser.error("give --processes=N (at least 1) and, after --, the command")
    # Whoever stops this command stops the job.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    status = launch(command, arguments.processes, arguments.devices)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
