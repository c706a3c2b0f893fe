"""`python -m plm_jax report --workdirs=A,B --output=report.html`: a page about runs and sweeps, which loads nothing.

With `--model_table` instead: the table of published models that docs/models.md has.
"""

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_WORKDIRS = flags.DEFINE_list("workdirs", [], "run directories; a sweep's folder stands for its runs")
_OUTPUT = flags.DEFINE_string("output", "report.html", "the page")
_PNG = flags.DEFINE_string("png", None, "a folder for pictures of the runs, too")
_MODEL_TABLE = flags.DEFINE_bool("model_table", False, "print the table of published models instead")
_MODULES = ModulesFlag()


def main() -> None:
    """Writes the page and prints its path, or prints the table."""
    if _MODEL_TABLE.value:
        command_line.start_jax_on_host()
        with progress.doing("counting parameters"):
            from plm_jax.experiments import model_table

            table = model_table.table(model_table.entries())
        print(table)
        return
    if not _WORKDIRS.value:
        raise UserError("--workdirs is missing: give run directories or a sweep's folder, separated by commas")
    _MODULES.load()
    with progress.doing("drawing the report"):
        from plm_jax.experiments import report

        report.write(_WORKDIRS.value, _OUTPUT.value, _PNG.value)
    print(storage.absolute(_OUTPUT.value))


if __name__ == "__main__":
    command_line.run(main)
