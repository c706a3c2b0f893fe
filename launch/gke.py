"""Runs a command on TPU slices of a Kubernetes cluster (GKE) as a JobSet, and shows the first worker's log.

    python launch/gke.py --name=my-run --topology=v5p:4x4x4 --image=us-docker.pkg.dev/PROJECT/REPOSITORY/plm_jax -- \\
        python -m plm_jax pretrain --config=bert:large --workdir=gs://bucket/my-run \\
        --config.data.cache_dir=gs://bucket/bert

Build the image from `launch/Dockerfile`. Each slice is a Job of the JobSet with its own node pool, and each machine of
a slice runs a pod. JAX reads the position of a pod from variables that GKE sets (TPU_WORKER_ID, MEGASCALE_SLICE_ID and
so on).

The JobSet restarts at once if a command exits with status 75 (it received a signal and saved its step) or a pod is
evicted. Exit status 2 ends the JobSet. After other failures, the JobSet restarts up to `--restarts` times. If you stop
this program, the job continues; run the program again with the same arguments to follow the job.

Needs Python, a `kubectl` with access to the cluster, and JobSet 0.10 or newer in the cluster. `--dry_run` prints the
manifest.
"""

import argparse
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
import time
from typing import Any

import jobs
from jobs import LaunchError, call, say

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from plm_jax.common.errors import UserError
from plm_jax.planning import slices

# Node labels by generation, https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus. Machines of larger
# slices have four chips.
ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
CHIPS_PER_HOST = 4
CONTAINER, LEADER = "main", "slice"
# Prefix of the labels that distinguish the set's pods.
JOBSET = "jobset.sigs.k8s.io"
# Time for a step to end and to be saved.
GRACE_SECONDS = 300


def slice_of(topology: str) -> tuple[str, str, int, int]:
    """Returns the node label, the shape, the number of machines and the chips of each, of a topology like `v5p:4x4x4`.

    Raises:
      LaunchError: Google does not offer such a slice, and a job would wait forever.
    """
    try:
        slices.check(topology)
    except UserError as error:
        raise LaunchError(str(error)) from error
    generation, _, shape = topology.partition(":")
    chips = math.prod(map(int, shape.split("x")))
    a_host = min(CHIPS_PER_HOST, chips)
    return ACCELERATORS[generation], shape, chips // a_host, a_host


def manifest(arguments: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    """Returns the manifest of the JobSet (https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/)."""
    accelerator, shape, hosts, chips = slice_of(arguments.topology)
    # The first matching rule counts. Failures of a pod end its Job, which ends or restarts the set.
    is_mistake = {"onJobFailureMessagePatterns": [f"exit code {jobs.MISTAKE} matching"]}
    by_policy = {"onJobFailureReasons": ["PodFailurePolicy"]}
    rules = [
        {"name": "mistake", "action": "FailJobSet", **by_policy, **is_mistake},
        {"name": "savedOrEvicted", "action": "RestartJobSetAndIgnoreMaxRestarts", **by_policy},
    ]
    return {
        "apiVersion": f"{JOBSET.removesuffix('.sigs.k8s.io')}.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": arguments.name,
            "namespace": arguments.namespace,
            "labels": {"app.kubernetes.io/name": "plm_jax"},
            # One node pool, which is one slice, for each Job.
            "annotations": {f"alpha.{JOBSET}/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            # A headless service gives the pods names, by which they find each other.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": arguments.restarts, "rules": rules},
            "replicatedJobs": [
                {
                    "name": LEADER,
                    "replicas": arguments.slices,
                    "template": {
                        "spec": {
                            "parallelism": hosts,
                            "completions": hosts,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            "podFailurePolicy": {"rules": [*map(fail_on_exit, (jobs.MISTAKE, jobs.SAVED)), EVICTED]},
                            "template": {"spec": pod(arguments, command, accelerator, shape, chips)},
                        }
                    },
                }
            ],
        },
    }


EVICTED = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def fail_on_exit(status: int) -> dict[str, Any]:
    """Returns the rule by which an exit status fails the Job, so that the set reacts to it."""
    codes = {"containerName": CONTAINER, "operator": "In", "values": [status]}
    return {"action": "FailJob", "onExitCodes": codes}


def pod(arguments: argparse.Namespace, command: list[str], accelerator: str, shape: str, chips: int) -> dict[str, Any]:
    """Returns the specification of the pod on each machine of a slice."""
    selector = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": shape}
    tolerations = [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    if arguments.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        tolerations.append(spot)
    if arguments.reservation:
        selector["cloud.google.com/reservation-name"] = arguments.reservation
    account = {"serviceAccountName": arguments.service_account} if arguments.service_account else {}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        **account,
        "nodeSelector": selector,
        "tolerations": tolerations,
        "containers": [
            {
                "name": CONTAINER,
                "image": arguments.image,
                "command": command,
                "env": [{"name": "PLM_JAX_DISTRIBUTED", "value": "1"}],
                # The TPU devices of a node belong to root.
                "securityContext": {"privileged": True, "runAsUser": 0},
                "resources": {"limits": {"google.com/tpu": chips}},
            }
        ],
    }


def yaml(tree: Any, indent: str = "") -> str:
    """Formats a tree of dicts, lists, strings, numbers and booleans as YAML; strings are quoted."""
    if isinstance(tree, dict) and tree:
        pairs = ((f"{indent}{key}:", value) for key, value in tree.items())
        return "\n".join(f"{key}{inner(value, indent + '  ')}" for key, value in pairs)
    if isinstance(tree, list) and tree:
        return "\n".join(f"{indent}- {yaml(value, indent + '  ').lstrip()}" for value in tree)
    return f"{indent}{json.dumps(tree)}"


def inner(value: Any, indent: str) -> str:
    """Formats the value of a key, on its line or below it."""
    below = isinstance(value, dict | list) and value
    return f"\n{yaml(value, indent)}" if below else f" {json.dumps(value)}"


class Cluster:
    """Commands for a set, as lists of arguments."""

    def __init__(self, name: str, namespace: str):
        self.name, self.namespace = name, namespace

    def kubectl(self, *words: str) -> list[str]:
        """Returns a command in the set's namespace."""
        return ["kubectl", f"--namespace={self.namespace}", *words]

    def delete(self) -> list[str]:
        """Returns the command that deletes the set and its pods."""
        return self.kubectl("delete", "jobset", self.name)

    def state(self) -> dict[str, Any] | None:
        """Returns the set, or None if it does not exist."""
        answer = call(self.kubectl("get", "jobset", self.name, "--ignore-not-found", "--output=json"))
        return json.loads(answer) if answer.strip() else None

    def leaders(self) -> list[dict[str, Any]]:
        """Returns the started pods of slice 0's machine 0 in their order: name, uid, and whether each has ended."""
        labels = {f"{JOBSET}/jobset-name": self.name, f"{JOBSET}/job-index": "0"}
        labels["batch.kubernetes.io/job-completion-index"] = "0"
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = json.loads(call(self.kubectl("get", "pods", f"--selector={selector}", "--output=json")))["items"]
        begun = [pod for pod in pods if pod["status"]["phase"] != "Pending"]
        begun.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
        ended = ("Succeeded", "Failed")
        return [pod["metadata"] | {"ended": pod["status"]["phase"] in ended} for pod in begun]

    def show_log(self, pod: str, last: str) -> str:
        """Shows a pod's log to its end, or until the connection breaks.

        Args:
          pod: name of the pod.
          last: timestamp of the last line that was shown, or empty.

        Returns:
          The new value of `last`.
        """
        since = [f"--since-time={last}"] if last else []
        words = ("logs", "--follow", "--timestamps", *since, f"--container={CONTAINER}", f"pod/{pod}")
        command = self.kubectl(*words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", bufsize=1) as process:
            try:
                for line in process.stdout:
                    time, _, text = line.partition(" ")
                    if instant(time) > instant(last):  # The cluster starts at a whole second.
                        print(text, end="", flush=True)
                        last = time
            finally:
                process.kill()
        return last


def instant(time: str) -> tuple[str, str]:
    """Returns a key that sorts timestamps of a log such as `2026-01-31T23:59:59.0123Z`."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    return seconds, fraction.rstrip("0")


def end_of(state: dict[str, Any]) -> str | None:
    """Returns `Completed` or `Failed`, or None if the set is running."""
    return state.get("status", {}).get("terminalState") or None


def follow(cluster: Cluster, poll_seconds: float) -> int:
    """Shows the log of the first worker, over restarts, until the set has ended.

    Returns:
      Exit status: 0, 2 for a mistake of the user, otherwise 1.
    """
    shown, last = set(), {}
    progress, connection = jobs.Progress(cluster.name), jobs.Connection("no answer")
    while True:
        state, leaders = connection.ask(lambda: (cluster.state(), cluster.leaders()), otherwise=(None, ()))
        if connection.failures:
            time.sleep(poll_seconds)
            continue
        if state is None:
            raise LaunchError(f"the JobSet {cluster.name} has been deleted: somebody has stopped the job")
        progress.report(f"{end_of(state) or 'running'}, {state.get('status', {}).get('restarts', 0)} restarts")
        for pod in leaders:
            uid = pod["uid"]
            if uid not in shown:
                last[uid] = cluster.show_log(pod["name"], last.get(uid, ""))
            if pod["ended"] or end_of(state):  # It had ended before its log was shown, so the log was complete.
                shown.add(uid)
        if end_of(state):
            return status_of(state)
        time.sleep(poll_seconds)


def status_of(state: dict[str, Any]) -> int:
    """Returns the exit status for the end of a set."""
    if end_of(state) == "Completed":
        return 0
    conditions = [condition for condition in state["status"].get("conditions", []) if condition["type"] == "Failed"]
    for condition in conditions:
        say(f"the command failed: {condition.get('reason')}: {condition.get('message')}")
    by_mistake = any(condition.get("reason") == "FailJobSetFailurePolicyAction" for condition in conditions)
    return jobs.MISTAKE if by_mistake else 1


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Returns the flags and the command.

    Raises:
      LaunchError: a flag is wrong.
    """
    parser = jobs.Parser(__doc__, poll_seconds=10)
    parser.option("name", required=True, help="name of the JobSet")
    parser.option(
        "topology", required=True, help=f"GENERATION:SHAPE of a slice, such as v5p:4x4x4; {', '.join(ACCELERATORS)}"
    )
    parser.option("image", required=True, help="image in a registry, built from launch/Dockerfile")
    parser.option("slices", type=int, default=1, help="number of slices (default: 1)")
    parser.option("namespace", default="default", help="Kubernetes namespace (default: default)")
    parser.tier("reservation", help="name of a reservation whose nodes are used")
    parser.option("restarts", type=int, default=3, help="maximum number of restarts after failures (default: 3)")
    arguments, command = parser.parse()
    # The limit of Kubernetes, minus what it adds to the names of pods.
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", arguments.name):
        raise LaunchError(f"--name={arguments.name}: use at most 40 lower-case letters, digits and -, a letter first")
    if arguments.slices < 1 or arguments.restarts < 0:
        raise LaunchError("--slices must be at least 1 and --restarts at least 0")
    return arguments, command


def launch() -> int:
    """Runs the launcher; returns its exit status."""
    arguments, command = parse()
    job_set = manifest(arguments, command)
    if arguments.dry_run:
        print(yaml(job_set))
        return 0
    cluster = Cluster(arguments.name, arguments.namespace)
    state = cluster.state()
    if state and not end_of(state):
        say(f"{cluster.name} is running: following it")
    else:
        if state:
            say(f"deleting the previous JobSet {cluster.name}, which has ended")
            call(cluster.delete())
        call(cluster.kubectl("apply", "--filename=-"), text=yaml(job_set))
    try:
        status = follow(cluster, arguments.poll_seconds)
    except (KeyboardInterrupt, LaunchError):
        hint = f"run the same command again to follow it, or delete it with: {shlex.join(cluster.delete())}"
        say(f"{cluster.name} still exists, and its nodes cost money while it runs: {hint}")
        raise
    say(f"{cluster.name} has ended; its nodes cost money until you or the cluster's autoscaler remove them")
    return status


if __name__ == "__main__":
    jobs.main(launch)
