#!/usr/bin/env bash
# Commands that launch/tpu_vm.py runs on every worker of a TPU, in the copy of this project in the home directory:
#
#   bash plm_jax/launch/worker.sh install          installs Python and the packages of requirements.txt, with jax for TPUs
#   bash plm_jax/launch/worker.sh start COMMAND…   starts the command as a process of the job, independent of the connection
#   bash plm_jax/launch/worker.sh state            prints none, running, lost, or the exit status of the ended process
#   bash plm_jax/launch/worker.sh log OFFSET       prints the log from a byte on, and a last line with the state and the size of the log
#   bash plm_jax/launch/worker.sh stop             sends SIGTERM to the process, and kills it if it does not end
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
  # With several slices, the metadata has their number, this slice and the address of the first, as in
  # MEGASCALE_NUM_SLICES: '2'.
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

# Whether any process of the job's group is active; ended processes may wait to be reaped.
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
  # The state is read first: if the process has ended by then, the log is complete.
  local now size
  now=$(state)
  size=$(stat --format=%s "$job/log")
  head -c "$size" "$job/log" | tail -c "+$(($1 + 1))"
  printf '\n%s %s\n' "$now" "$size"
}

stop() {
  alive || return 0
  kill -TERM -- "-$(cat "$job/pid")" || true
  # The process saves its step first.
  for _ in $(seq 1300); do
    alive || return 0
    sleep 0.1
  done
  kill -KILL -- "-$(cat "$job/pid")" || true
}

"$@"
