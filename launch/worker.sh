#!/usr/bin/env bash
# What launch/tpu_vm.py runs on every worker of a TPU, where this project lies in the home directory:
#
#   bash plm_jax/launch/worker.sh install          Python, and what requirements.txt pins, with jax for TPUs
#   bash plm_jax/launch/worker.sh start COMMAND…   the command as a process of the job; it outlives the connection
#   bash plm_jax/launch/worker.sh state            none, running, the exit status of an ended one, or lost
#   bash plm_jax/launch/worker.sh log OFFSET       the log from a byte on; then, on a line, the state and the log's size
#   bash plm_jax/launch/worker.sh stop             asks the process to end, then kills it
set -euo pipefail
cd "$(dirname "$0")/.."
job=$HOME/plm_jax_job
metadata=http://metadata.google.internal/computeMetadata/v1/instance/attributes

install() {
  # The images of TPU VMs have Python 3.10.
  python3 -m pip install --quiet --user uv
  python3 -m uv python install --quiet 3.11
  PYTHON=$(python3 -m uv python find 3.11) PLM_JAX_ACCELERATOR=tpu source launch/environment.sh
}

start() {
  stop
  rm -rf "$job"
  mkdir "$job"
  setsid bash launch/worker.sh run "$@" > "$job/log" 2>&1 < /dev/null &
  echo $! > "$job/pid"
}

attribute() { curl --silent --fail --header 'Metadata-Flavor: Google' "$metadata/$1"; }

run() {
  source launch/environment.sh
  export PLM_JAX_DISTRIBUTED=1 PLM_JAX_PREEMPTION_NOTICE=gce JAX_PROCESS_ID
  JAX_PROCESS_ID=$(attribute agent-worker-number)
  # Of several slices the machine knows how many, its own, and where the first is, as MEGASCALE_NUM_SLICES: '2'.
  local line endpoints
  while read -r line; do
    export "$line"
  done < <(attribute tpu-env | sed -n "s/^\(MEGASCALE_[A-Z_]*\): *'\(.*\)'.*$/\1=\2/p")
  if [ "${MEGASCALE_SLICE_ID:-0}" != 0 ]; then
    endpoints=$(attribute worker-network-endpoints | tr ',' '\n' | wc -l)
    JAX_PROCESS_ID=$((MEGASCALE_SLICE_ID * endpoints + JAX_PROCESS_ID))
  fi
  local status=0
  "$@" || status=$?
  echo "$status" > "$job/status"
}

# Whether any process of the job's group does something; one that has ended may wait to be reaped.
alive() { [ -s "$job/pid" ] && pgrep --pgroup "$(cat "$job/pid")" --runstates D,R,S > /dev/null; }

state() {
  if [ ! -d "$job" ]; then
    echo none
  elif [ -s "$job/status" ]; then
    cat "$job/status"
  elif alive; then
    echo running
  else
    echo lost
  fi
}

log() {
  # The state comes first: of a process that has ended by now the whole log is there.
  local now size
  now=$(state)
  size=$(stat --format=%s "$job/log")
  head -c "$size" "$job/log" | tail -c "+$(($1 + 1))"
  printf '\n%s %s\n' "$now" "$size"
}

stop() {
  alive || return 0
  kill -TERM -- "-$(cat "$job/pid")" || true
  # It saves its step first.
  for _ in $(seq 1300); do
    alive || return 0
    sleep 0.1
  done
  kill -KILL -- "-$(cat "$job/pid")" || true
}

"$@"
