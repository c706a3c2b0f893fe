"""The fake `gcloud`: a queued resource of two workers a node, which are folders with processes; `FAKES` has its state.

A request waits for two queries. With `FAKE_PREEMPTION=N` the TPU is taken away when step N of the job has been seen, of
several nodes the last alone. `FAKE_NODES` are its nodes, `FAKE_FLAGS` the further flags that its creation must have;
`FAKE_REFUSALS=N`: the first N times there is no SSH.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

FOLDER = pathlib.Path(os.environ["FAKES"])
STATE = FOLDER / "gcloud.json"
NODES = int(os.environ.get("FAKE_NODES", "1"))
NAMES = ["run"] if NODES == 1 else [f"run-{node}" for node in range(NODES)]
WORKERS = {name: [FOLDER / f"worker-{node}-{number}" for number in range(2)] for node, name in enumerate(NAMES)}
ALL = [worker for workers in WORKERS.values() for worker in workers]
PLACE = ["--zone=us-west4-a", "--project=tests", "--quiet"]
FLAGS = os.environ.get("FAKE_FLAGS", "--spot").split()
REACHED = {
    workers: (f"--node={workers}", f"--worker={workers}", "--batch-size=64", *(["--internal-ip"] * internal))
    for workers in ("0", "all")
    for internal in ["--internal-ips" in FLAGS]
}
SSH = "--ssh-flag=-oServerAliveInterval=30"


def fail(text: str) -> None:
    """Ends as gcloud does."""
    sys.exit(f"ERROR: (gcloud.compute.tpus) {text}")


def describe(state: dict, name: str, *flags: str) -> None:
    """Prints the request's state; every query brings it on."""
    assert (name, *flags) == ("run", "--format=value(state.state)")
    if not state["states"]:
        fail("NOT_FOUND: Resource 'run' was not found")
    print(state["states"][0])
    if len(state["states"]) > 1:
        state["states"].pop(0)
    if state["states"][0] == "ACTIVE" and not state["made"]:
        state["made"] = True
        for worker in ALL:
            worker.mkdir()


def describe_node(state: dict, name: str, *flags: str) -> None:
    """Prints the node's state."""
    assert flags == ("--format=value(state)",)
    print("READY" if WORKERS[name][0].exists() else fail("NOT_FOUND"))


def create(state: dict, name: str, *flags: str) -> None:
    """Queues the request."""
    nodes = ["--node-id=run"] if NODES == 1 else [f"--node-count={NODES}", "--node-prefix=run"]
    kind = ["--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"]
    assert [name, *flags] == ["run", *nodes, *kind, *FLAGS], flags
    if state["states"]:
        fail("ALREADY_EXISTS: the resource exists")
    state["states"], state["made"] = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], False


def delete(state: dict, name: str, *flags: str) -> None:
    """Deletes the request and its workers."""
    assert (name, *flags) == ("run", "--force")
    if not state["states"]:
        fail("NOT_FOUND")
    for node in NAMES:
        take_away(node)
    state["states"] = []


def take_away(node: str) -> None:
    """The machines go: their processes die, their disks are lost."""
    for worker in WORKERS[node]:
        with contextlib.suppress(OSError, ValueError):
            os.killpg(int((worker / "plm_jax_job" / "pid").read_text()), signal.SIGKILL)
        shutil.rmtree(worker, ignore_errors=True)


def refuse(state: dict) -> None:
    """Refuses SSH, like new machines."""
    if state["refused"] < int(os.environ.get("FAKE_REFUSALS", "0")):
        state["refused"] += 1
        fail("[/usr/bin/ssh] exited with return code [255].")


def scp(state: dict, file: str, *flags: str) -> None:
    """Copies a file to all workers."""
    assert flags == ("run:", *REACHED["all"])
    refuse(state)
    for worker in ALL:
        shutil.copy(file, worker)


def ssh(state: dict, name: str, *flags: str) -> None:
    """Runs a command on workers, at once."""
    *reached, alive, command = flags
    assert name == "run" and tuple(reached) in REACHED.values() and alive == SSH
    refuse(state)
    step = FOLDER / "bucket" / "0"
    is_log = "worker.sh log" in command and not command.endswith("log 0")
    if is_log and "FAKE_PREEMPTION" in os.environ and step.read_text() == os.environ["FAKE_PREEMPTION"] + "\n":
        if NODES == 1:
            state["states"] = ["SUSPENDED"]
        take_away(NAMES[-1])
        (FOLDER / "bucket" / "go").touch()
    if state["states"] != ["ACTIVE"] or not all(worker.exists() for worker in ALL):
        fail("the TPU is not READY")
    command = command.removeprefix("--command=")
    running = [
        subprocess.Popen(["bash", "-c", command], cwd=worker, env=os.environ | {"HOME": str(worker)})
        for worker in (ALL if "--worker=all" in reached else ALL[:1])
    ]
    sys.exit(max(process.wait() for process in running))


VERBS = {
    ("queued-resources", "describe"): describe,
    ("queued-resources", "create"): create,
    ("queued-resources", "delete"): delete,
    ("queued-resources", "scp"): scp,
    ("queued-resources", "ssh"): ssh,
    ("tpu-vm", "describe"): describe_node,
}


def main(words: list[str]) -> None:
    """One call."""
    with open(FOLDER / "gcloud.calls", "a", encoding="utf-8") as calls:
        calls.write(json.dumps(["gcloud", *words]) + "\n")
    if "FAKE_LOGGED_OUT" in os.environ:
        fail("You do not currently have an active account selected.")
    if words[0] == "alpha":
        words.pop(0)
        assert words[3] == "create" and any(flag.startswith(("--reservation=", "--provisioning")) for flag in words)
    compute, tpus, group, verb, *rest = words
    assert [compute, tpus] == ["compute", "tpus"] and rest[-3:] == PLACE
    state = {"states": [], "made": False, "refused": 0}
    if STATE.exists():
        state = json.loads(STATE.read_text())
    try:
        VERBS[group, verb](state, *rest[:-3])
    finally:
        STATE.write_text(json.dumps(state))


if __name__ == "__main__":
    main(sys.argv[2:])
