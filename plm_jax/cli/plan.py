"""Estimate the memory, FLOPs and communication of a training step on other hardware.

usage: plm_jax plan --config=CONFIG --topology=TOPOLOGY [flags]

Compiles the training step for a TPU slice or GPUs, which need not be attached to this machine, and prints whether it
fits in their memory. With --topology=none, nothing is compiled.

examples:
  plm_jax plan --config=demo:gpt2 --topology=none
  plm_jax plan --config=bert:large --topology=v5e:4x4
"""

import json
import sys

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.config import checks
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "TPU slice such as v5p:4x4x4, or GPUs such as gpu:h100:8; with `none`, nothing is compiled, and "
    "parameters and FLOPs are computed from array shapes (required)",
)
_SLICES = flags.DEFINE_integer("slices", 1, "number of TPU slices, connected by the data-center network")
_SEARCH = flags.DEFINE_bool("search", False, "try other meshes, microbatches and values of model.remat; slow")
_PRICE = flags.DEFINE_float("price", 0.0, "price in dollars per chip-hour, to estimate the cost per token; 0: unknown")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the estimates")


def main() -> None:
    """Prints the estimates as a table, and writes them to `--output` if it is set."""
    topology = command_line.required(_TOPOLOGY, "set it to a TPU slice or GPUs, or to none for sizes alone")
    run = _CONFIG.run()
    checks.refuse_unused(run)
    command_line.start_jax_for_planning()
    with progress.doing("loading JAX"):
        from plm_jax.planning import plan as planning
        from plm_jax.runs import telemetry

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with telemetry.report_logs(say), progress.doing("planning"):
        report = planning.plan(run, topology, say, slices=_SLICES.value, price=_PRICE.value, run_search=_SEARCH.value)
    print(planning.table(report))
    if _OUTPUT.value:
        storage.write(_OUTPUT.value, json.dumps(report, indent=2).encode("utf-8"))


if __name__ == "__main__":
    command_line.run(main)
