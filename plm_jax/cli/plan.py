"""`python -m plm_jax plan --config=FILE.py:SIZE --topology=v5p:4x4x4`: what a step takes on a TPU slice, without it."""

import json
import sys

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_TOPOLOGY = flags.DEFINE_string("topology", None, "a TPU slice as v5p:4x4x4, GPUs as gpu:h100:8; none: shapes only")
_SLICES = flags.DEFINE_integer("slices", 1, "how many such TPU slices, joined by the data centre's network")
_SEARCH = flags.DEFINE_bool("search", False, "try other meshes, microbatches and levels of recomputation; takes long")
_PRICE = flags.DEFINE_float("price", 0.0, "dollars for an hour of a chip: what a token costs is told")
_OUTPUT = flags.DEFINE_string("output", None, "where the figures go as JSON")


def main() -> None:
    """Compiles, prints a table, writes `--output`."""
    run, topology = _CONFIG.run(), command_line.required(_TOPOLOGY)
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
