"""The fake `kubectl`, with a cluster in `FAKES`: one JobSet, whose pods are processes.

The effect of a failed pod is the same as in Kubernetes and JobSet: the first matching rule of the Job's
`podFailurePolicy`, with its reason and message, then the first matching one of the set's `failurePolicy`. A job that
makes the file `FAKES/evict` loses the node of slice 0's machine 0. `FAKE_SILENCES=N`: N queries for a set that is there
get no answer.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import yaml

FOLDER = pathlib.Path(os.environ["FAKES"])
STATE, PODS = FOLDER / "kubectl.json", FOLDER / "pods"
# The fields of v1alpha2's Go types (kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go) and of batch/v1 and
# core/v1 that a set of ours may have, by the path to them.
FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name", "namespace", "labels", "annotations"},
    "spec": {"replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy", "suspend"},
    "spec.network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
    "spec.failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "spec.failurePolicy.rules": {
        *("name", "action", "onJobFailureReasons", "onJobFailureMessagePatterns", "targetReplicatedJobs")
    },
    "spec.replicatedJobs": {"name", "groupName", "template", "replicas", "dependsOn"},
    "spec.replicatedJobs.template": {"metadata", "spec"},
    "spec.replicatedJobs.template.spec": {
        *("parallelism", "completions", "completionMode", "backoffLimit", "podFailurePolicy", "template")
    },
    "spec.replicatedJobs.template.spec.podFailurePolicy.rules": {"action", "onExitCodes", "onPodConditions"},
    "spec.replicatedJobs.template.spec.template.spec": {
        *("restartPolicy", "terminationGracePeriodSeconds", "hostNetwork", "dnsPolicy", "serviceAccountName"),
        *("nodeSelector", "tolerations", "containers"),
    },
    "spec.replicatedJobs.template.spec.template.spec.containers": {
        *("name", "image", "command", "env", "securityContext", "resources")
    },
}


def check_fields(tree: object, path: str = "") -> None:
    """Refuses what the API server would: fields that there are not."""
    if isinstance(tree, list):
        for part in tree:
            check_fields(part, path)
    elif isinstance(tree, dict):
        assert tree.keys() <= FIELDS.get(path, tree.keys()), (path, tree.keys())
        for name, part in tree.items():
            check_fields(part, f"{path}.{name}".strip("."))


def check(job_set: dict) -> None:
    """Checks a JobSet beyond its fields, like the validation of JobSet and Kubernetes."""
    check_fields(job_set)
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    for rule in job_set["spec"]["failurePolicy"]["rules"]:
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
        assert rule["action"] in ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")
        assert set(rule["onJobFailureReasons"]) <= {"BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"}
    for job in job_set["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        inner = spec["template"]["spec"]
        # A Job with such a policy must leave restarts to it; places are those of an indexed one of as many.
        assert inner["restartPolicy"] == "Never" and spec["completionMode"] == "Indexed"
        assert spec["parallelism"] == spec["completions"]
        names = {container["name"] for container in inner["containers"]}
        for rule in spec["podFailurePolicy"]["rules"]:
            assert rule["action"] == "FailJob" and len(rule) == 2
            assert rule.get("onExitCodes", {}).get("containerName") in {*names, None}
        for container in inner["containers"]:
            assert all(isinstance(entry["value"], str) for entry in container["env"])
            assert all(isinstance(word, str) for word in container["command"])


def apply(state: dict, *flags: str) -> None:
    """Creates the set."""
    assert flags == ("--filename=-",)
    job_set = yaml.safe_load(sys.stdin)
    check(job_set)
    assert state["set"] is None, "a set's spec cannot be changed"
    state["set"] = {**job_set, "status": {"restarts": 0, "conditions": []}}
    state["counted"] = 0
    begin(state)


def begin(state: dict) -> None:
    """Starts all pods of a life."""
    (job,) = state["set"]["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    state["life"] += 1
    for index in range(job["replicas"]):
        for position in range(spec["completions"]):
            pod = PODS / f"{state['set']['metadata']['name']}-{job['name']}-{index}-{position}-life{state['life']}"
            pod.mkdir(parents=True)
            more = {entry["name"]: entry["value"] for entry in container["env"]}
            more |= {"TPU_WORKER_ID": str(position), "MEGASCALE_SLICE_ID": str(index), "POD": str(pod)}
            # Its exit status appears whole.
            wait = '"$@" > "$POD/log" 2>&1; echo $? > "$POD/status.tmp"; mv "$POD/status.tmp" "$POD/status"'
            running = subprocess.Popen(
                ["bash", "-c", wait, "pod", *container["command"]],
                env=os.environ | more,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            (pod / "pid").write_text(str(running.pid))


def pods(state: dict) -> dict[tuple[int, int], pathlib.Path]:
    """Returns the pods of this life, by the index of the Job and the position in it."""
    statuses = {}
    for pod in PODS.glob(f"*-life{state['life']}"):
        *_, index, position, _ = pod.name.split("-")
        statuses[int(index), int(position)] = pod
    return statuses


def status(pod: pathlib.Path) -> int | None:
    """A pod's exit status."""
    return int((pod / "status").read_text()) if (pod / "status").exists() else None


def stop(state: dict) -> None:
    """Kills all pods of this life."""
    for pod in pods(state).values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int((pod / "pid").read_text()), signal.SIGKILL)


def control(state: dict) -> None:
    """Acts like the controllers: applies the rules for the first failed pod, or ends the set."""
    if state["set"] is None or state["set"]["status"].get("terminalState"):
        return
    statuses = {position: status(pod) for position, pod in pods(state).items()}
    evicted = (FOLDER / "evict").exists()
    if evicted:
        (FOLDER / "evict").unlink()
    failed = [(position, code) for position, code in sorted(statuses.items()) if code]
    if evicted:
        act(state, *failure(state, (0, 0), None))
    elif failed:
        act(state, *failure(state, *failed[0]))
    elif all(code == 0 for code in statuses.values()):
        end(state, "Completed", "AllJobsCompleted", "jobset completed successfully")


def failure(state: dict, position: tuple[int, int], code: int | None) -> tuple[str, str]:
    """The reason and message with which the pod's Job fails; no code: its node is taken away."""
    spec = state["set"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    name = f"default/{pods(state)[position].name}"
    for number, rule in enumerate(spec["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes", {"values": ()})
        if code is not None and code in codes["values"]:
            what = f"Container {codes['containerName']} for pod {name} failed with exit code {code}"
            return "PodFailurePolicy", f"{what} matching {rule['action']} rule at index {number}"
        if code is None and any(of["type"] == "DisruptionTarget" for of in rule.get("onPodConditions", ())):
            what = f"Pod {name} has condition DisruptionTarget"
            return "PodFailurePolicy", f"{what} matching {rule['action']} rule at index {number}"
    assert spec["backoffLimit"] == 0
    return "BackoffLimitExceeded", "Job has reached the specified backoff limit"


def act(state: dict, reason: str, message: str) -> None:
    """Ends the set or starts it again, by the first rule that matches."""
    policy, action = state["set"]["spec"]["failurePolicy"], "RestartJobSet"
    for rule in policy["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            action = rule["action"]
            break
    stop(state)
    if action == "FailJobSet":
        return end(state, "Failed", "FailJobSetFailurePolicyAction", message)
    if action == "RestartJobSet":
        if state["counted"] == policy["maxRestarts"]:
            return end(state, "Failed", "ReachedMaxRestarts", message)
        state["counted"] += 1
    state["set"]["status"]["restarts"] += 1
    return begin(state)


def end(state: dict, kind: str, reason: str, message: str) -> None:
    """The set's last condition."""
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    state["set"]["status"] |= {"terminalState": kind, "conditions": [condition]}


def get(state: dict, kind: str, *words: str) -> None:
    """The set, or the leader's pods."""
    if state["set"] and state["silences"] < int(os.environ.get("FAKE_SILENCES", "0")):
        state["silences"] += 1
        sys.exit("Unable to connect to the server: net/http: TLS handshake timeout")
    control(state)
    if kind == "jobset":
        assert words == ("my-run", "--ignore-not-found", "--output=json")
        print(json.dumps(state["set"]) if state["set"] else "")
        return
    labels = "jobset.sigs.k8s.io/jobset-name=my-run,jobset.sigs.k8s.io/job-index=0"
    assert words == (f"--selector={labels},batch.kubernetes.io/job-completion-index=0", "--output=json")
    items = []
    for pod in PODS.glob("my-run-*-0-0-life*"):
        phase = {None: "Running", 0: "Succeeded"}.get(status(pod), "Failed")
        life = int(pod.name.rpartition("life")[2])
        about = {"name": pod.name, "uid": f"uid{life}", "creationTimestamp": f"2026-01-01T00:00:{life:02d}Z"}
        items.append({"metadata": about, "status": {"phase": phase}})
    print(json.dumps({"items": items}))


def logs(state: dict, *words: str) -> None:
    """A pod's log to its end, or, with `FAKE_BREAKS`, each line by a connection of its own.

    Two lines are of the same second; of what is since a time the cluster sends all from its second on.
    """
    follow, timestamps, *since, container, pod = words
    assert (follow, timestamps, container) == ("--follow", "--timestamps", "--container=main")
    folder, shown = PODS / pod.removeprefix("pod/"), 0
    last = since[0].removeprefix("--since-time=").rstrip("Z") if since else ""
    while True:
        has_ended = not alive(folder)
        lines = (folder / "log").read_text().splitlines()
        for number in range(shown, len(lines)):
            time_of_line = f"2026-01-01T00:00:{number // 2:02d}{('', '.5')[number % 2]}"
            if time_of_line >= last.partition(".")[0]:
                print(f"{time_of_line}Z {lines[number]}", flush=True)
            if "FAKE_BREAKS" in os.environ and time_of_line > last and not has_ended:
                sys.exit("error: unexpected EOF")
        shown = len(lines)
        if has_ended or (FOLDER / "evict").exists():
            return
        time.sleep(0.02)


def alive(pod: pathlib.Path) -> bool:
    """Whether a pod runs."""
    try:
        return status(pod) is None and pathlib.Path(f"/proc/{(pod / 'pid').read_text()}").exists()
    except ValueError:
        return True


def delete(state: dict, *words: str) -> None:
    """Ends the set."""
    assert words == ("jobset", "my-run") and state["set"] is not None
    stop(state)
    shutil.rmtree(PODS)
    state["set"] = None


def main(words: list[str]) -> None:
    """One call."""
    with open(FOLDER / "kubectl.calls", "a", encoding="utf-8") as calls:
        calls.write(json.dumps(words) + "\n")
    namespace, verb, *rest = words
    assert namespace == "--namespace=default"
    state = {"set": None, "counted": 0, "life": 0, "silences": 0}
    if STATE.exists():
        state = json.loads(STATE.read_text())
    try:
        {"apply": apply, "get": get, "logs": logs, "delete": delete}[verb](state, *rest)
    finally:
        if verb != "logs":
            STATE.write_text(json.dumps(state))


if __name__ == "__main__":
    main(sys.argv[2:])
