"""`python -m plm_jax.report --workdirs=A,B --output=report.html`: a page about runs, its pictures inside.

With `--zoo` instead: the README's table of published models.
"""

from absl import flags

from plm_jax import cli, progress, storage
from plm_jax.errors import UserError

_WORKDIRS = flags.DEFINE_list("workdirs", [], "run directories")
_OUTPUT = flags.DEFINE_string("output", "report.html", "the page")
_ZOO = flags.DEFINE_bool("zoo", False, "print the table of published models instead")


def main() -> None:
    """Writes the page and prints its path, or prints the table."""
    if _ZOO.value:
        cli.start_jax_on_host()
        with progress.doing("counting parameters"):
            from plm_jax.evaluation import zoo

            table = zoo.table(zoo.entries())
        print(table)
        return
    if not _WORKDIRS.value:
        raise UserError("--workdirs is missing: give run directories, separated by commas")
    with progress.doing("drawing the report"):
        from plm_jax.evaluation import report

        report.write(_WORKDIRS.value, _OUTPUT.value)
    print(storage.absolute(_OUTPUT.value))


if __name__ == "__main__":
    cli.run(main)
