"""Write an HTML report about runs and sweeps.

usage: plm_jax report --workdirs=DIRS [flags]

The page is a single file that loads nothing from the network.

example:
  plm_jax report --workdirs=runs/demo-gpt2-0,runs/demo-bert-0 --output=report.html
"""

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_WORKDIRS = flags.DEFINE_list(
    "workdirs", [], "run directories; the directory of a sweep includes all of its runs (required)"
)
_OUTPUT = flags.DEFINE_string("output", "report.html", "HTML file to write")
_PNG = flags.DEFINE_string("png", None, "directory for the charts of the runs as PNG files")
_MODULES = ModulesFlag()


def main() -> None:
    """Writes the page and prints its path."""
    if not _WORKDIRS.value:
        raise UserError("--workdirs is missing: pass run directories or the directory of a sweep, separated by commas")
    _MODULES.load()
    with progress.doing("drawing the report"):
        from plm_jax.experiments import report

        report.write(_WORKDIRS.value, _OUTPUT.value, _PNG.value)
    print(storage.absolute(_OUTPUT.value))


if __name__ == "__main__":
    command_line.run(main)
