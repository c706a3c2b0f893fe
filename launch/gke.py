"""Runs a command on TPU slices of a Kubernetes cluster (GKE) as a JobSet, and shows the first worker's log to its end.

    python launch/gke.py --name=my-run --topology=v5p:4x4x4 --image=us-docker.pkg.dev/PROJECT/REPOSITORY/plm_jax -- \\
        python -m plm_jax pretrain --config=configs/bert.py:large --workdir=gs://bucket/my-run

The image is that of `launch/Dockerfile`. Each slice is a Job of the set, one pod a machine, on a node pool of its own;
GKE tells them their places (TPU_WORKER_ID, MEGASCALE_SLICE_ID and so on), from which jax takes them. A command that
ends with 75 saved its step after a signal, and a pod whose node is taken away is no failure either: the set starts
again at once. One that ends with 2 ends the set; other failures start it again `--restarts` times. The job outlives
this program: called again in the same way it follows the job on.

Needs Python and a `kubectl` that has the cluster, with JobSet 0.10 or newer in it; `--dry_run` prints the manifest.
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

# The node label of a generation; https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus. A machine of
# several has four chips.
ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
CHIPS_A_HOST = 4
CONTAINER, LEADER = "main", "slice"
# Where the set's pods are told apart.
JOBSET = "jobset.sigs.k8s.io"
# For a step to end, and to be saved.
GRACE_SECONDS = 300
# How often in a row the cluster may not answer.
LOST_CONNECTIONS = 10


def slice_of(topology: str) -> tuple[str, str, int, int]:
    """Of `v5p:4x4x4` the node label, the shape, the machines, and the chips of each.

    Raises:
      LaunchError: Google offers no such slice, for which a job would wait for ever.
    """
    try:
        slices.check(topology)
    except UserError as error:
        raise LaunchError(str(error)) from error
    generation, _, shape = topology.partition(":")
    chips = math.prod(map(int, shape.split("x")))
    a_host = min(CHIPS_A_HOST, chips)
    return ACCELERATORS[generation], shape, chips // a_host, a_host


def manifest(arguments: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    """The JobSet, https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/."""
    accelerator, shape, hosts, chips = slice_of(arguments.topology)
    # In the order in which they are looked at. Failures of a pod end its Job, and that ends or restarts the set.
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
    """The rule by which an exit status is the Job's failure, so that the set knows it."""
    codes = {"containerName": CONTAINER, "operator": "In", "values": [status]}
    return {"action": "FailJob", "onExitCodes": codes}


def pod(arguments: argparse.Namespace, command: list[str], accelerator: str, shape: str, chips: int) -> dict[str, Any]:
    """What runs on each machine of a slice."""
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
                # A node's TPU devices are root's, whoever the image's user is.
                "securityContext": {"privileged": True, "runAsUser": 0},
                "resources": {"limits": {"google.com/tpu": chips}},
            }
        ],
    }


def yaml(tree: Any, indent: str = "") -> str:
    """A tree of dicts, lists, strings, numbers and truths as YAML; strings are quoted."""
    if isinstance(tree, dict) and tree:
        pairs = ((f"{indent}{key}:", value) for key, value in tree.items())
        return "\n".join(f"{key}{inner(value, indent + '  ')}" for key, value in pairs)
    if isinstance(tree, list) and tree:
        return "\n".join(f"{indent}- {yaml(value, indent + '  ').lstrip()}" for value in tree)
    return f"{indent}{json.dumps(tree)}"


def inner(value: Any, indent: str) -> str:
    """What stands behind a key: on its line, or below it."""
    below = isinstance(value, dict | list) and value
    return f"\n{yaml(value, indent)}" if below else f" {json.dumps(value)}"


class Cluster:
    """The commands for a set, as lists of arguments."""

    def __init__(self, name: str, namespace: str):
        self.name, self.namespace = name, namespace

    def kubectl(self, *words: str) -> list[str]:
        """A command in the set's namespace."""
        return ["kubectl", f"--namespace={self.namespace}", *words]

    def delete(self) -> list[str]:
        """Ends the set and its pods."""
        return self.kubectl("delete", "jobset", self.name)

    def found(self) -> dict[str, Any] | None:
        """The set as it is, None: there is none."""
        told = call(self.kubectl("get", "jobset", self.name, "--ignore-not-found", "--output=json"))
        return json.loads(told) if told.strip() else None

    def leaders(self) -> list[dict[str, Any]]:
        """The pods of slice 0's machine 0 that have begun, one after another: name, uid, and whether each has ended."""
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
          last: the time of the line that was shown last, as the log has it; "": none was.

        Returns:
          The same of now.
        """
        since = [f"--since-time={last}"] if last else []
        words = ("logs", "--follow", "--timestamps", *since, f"--container={CONTAINER}", f"pod/{pod}")
        command = self.kubectl(*words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", bufsize=1) as process:
            try:
                for line in process.stdout:
                    time, _, text = line.partition(" ")
                    if instant(time) > instant(last):  # The cluster goes by whole seconds.
                        print(text, end="", flush=True)
                        last = time
            finally:
                process.kill()  # Whoever stops the launcher stops this with it.
        return last


def instant(time: str) -> tuple[str, str]:
    """What orders the times of a log, as in `2026-01-31T23:59:59.0123Z`."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    return seconds, fraction.rstrip("0")


def end_of(found: dict[str, Any]) -> str | None:
    """`Completed` or `Failed`, None: it goes on."""
    return found.get("status", {}).get("terminalState") or None


def follow(cluster: Cluster, poll_seconds: float) -> int:
    """Shows the log of the first worker, over restarts, until the set has ended: 0, 2 for a user's mistake, else 1."""
    shown, last, told, failures = set(), {}, None, 0
    while True:
        try:
            found, leaders = cluster.found(), cluster.leaders()
        except LaunchError as error:
            failures += 1
            if failures == LOST_CONNECTIONS:
                raise
            say(f"no answer, trying again: {error}")
            time.sleep(poll_seconds)
            continue
        failures = 0
        if found is None:
            raise LaunchError(f"the JobSet {cluster.name} has been deleted: somebody has stopped the job")
        now = f"{end_of(found) or 'running'}, {found.get('status', {}).get('restarts', 0)} restarts"
        if now != told:
            say(f"{cluster.name}: {now}")
            told = now
        for pod in leaders:
            uid = pod["uid"]
            if uid not in shown:
                last[uid] = cluster.show_log(pod["name"], last.get(uid, ""))
            if pod["ended"] or end_of(found):  # Before its log was shown, which so is all of it.
                shown.add(uid)
        if end_of(found):
            return status_of(found)
        time.sleep(poll_seconds)


def status_of(found: dict[str, Any]) -> int:
    """The exit status for the end of a set."""
    if end_of(found) == "Completed":
        return 0
    conditions = [condition for condition in found["status"].get("conditions", []) if condition["type"] == "Failed"]
    for condition in conditions:
        say(f"the command failed: {condition.get('reason')}: {condition.get('message')}")
    by_mistake = any(condition.get("reason") == "FailJobSetFailurePolicyAction" for condition in conditions)
    return jobs.MISTAKE if by_mistake else 1


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the JobSet")
    parser.add_argument("--topology", required=True, help=f"GENERATION:SHAPE of a slice; {', '.join(ACCELERATORS)}")
    parser.add_argument("--image", required=True, help="what launch/Dockerfile makes, in a registry")
    parser.add_argument("--slices", type=int, default=1, help="over which the command runs (multislice)")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--service_account", help="the Kubernetes one whose rights the pods have")
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--spot", action="store_true", help="nodes that may be preempted")
    tier.add_argument("--reservation", help="nodes of a reservation of this name")
    parser.add_argument("--compilation_cache", metavar="DIR", help="what was compiled; default: WORKDIR/compilation")
    parser.add_argument("--restarts", type=int, default=3, help="how often a command that failed starts again")
    parser.add_argument("--poll_seconds", type=float, default=10)
    parser.add_argument("--dry_run", action="store_true", help="print the manifest, run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    # What Kubernetes takes, with room for what it adds to the names of pods.
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", arguments.name):
        raise LaunchError(f"--name={arguments.name}: give at most 40 lower-case letters, digits and -, a letter first")
    if arguments.slices < 1 or arguments.restarts < 0:
        raise LaunchError("--slices is at least 1, --restarts at least 0")
    return arguments, jobs.with_cache(jobs.after_dashes(arguments.command), arguments.compilation_cache)


def launch() -> int:
    """Does what the command line says: the exit status."""
    arguments, command = parse()
    made = manifest(arguments, command)
    if arguments.dry_run:
        print(yaml(made))
        return 0
    cluster = Cluster(arguments.name, arguments.namespace)
    found = cluster.found()
    if found and not end_of(found):
        say(f"{cluster.name} is running: following it")
    else:
        if found:
            say(f"deleting what is left of a {cluster.name} that has ended")
            call(cluster.delete())
        call(cluster.kubectl("apply", "--filename=-"), given=yaml(made))
    try:
        status = follow(cluster, arguments.poll_seconds)
    except (KeyboardInterrupt, LaunchError):
        told = f"the same command goes on; to delete it: {shlex.join(cluster.delete())}"
        say(f"{cluster.name} is left as it is, and its nodes cost money while it runs: {told}")
        raise
    say(f"{cluster.name} has ended; its nodes cost money until the cluster's autoscaler, or you, remove their pools")
    return status


if __name__ == "__main__":
    jobs.main(launch)
