"""Command line of plm_jax: `plm_jax COMMAND [flags]` or `python -m plm_jax COMMAND [flags]`."""

import ast
import pathlib
import platform
import runpy
import sys

from plm_jax import __version__
from plm_jax.common import interrupts
from plm_jax.common.errors import nearest

_PACKAGE = pathlib.Path(__file__).parent


def commands() -> dict[str, str]:
    """Returns the summary of each command by name: the first line of its module's docstring, without the final period.

    The modules are in `cli/`. A module without a docstring is not a command.
    """
    summaries = {}
    for path in sorted(_PACKAGE.glob("cli/*.py")):
        if docstring := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
            summaries[path.stem] = docstring.splitlines()[0].removesuffix(".")
    return summaries


def main() -> None:
    """Runs the command that the command line names, lists the commands, or prints versions.

    Exits with status 2 if there is no command or the command is unknown.
    """
    interrupts.end_at_interrupt()
    summaries, arguments = commands(), sys.argv[1:2]
    if arguments in ([], ["-h"], ["--help"], ["help"]):
        print("Pretrain, fine-tune and evaluate language models.\n\nusage: plm_jax COMMAND [flags]\n\ncommands:")
        print("\n".join(f"  {name:<13}{summary}" for name, summary in summaries.items()))
        print("\nRun plm_jax COMMAND --help for the flags of a command, and plm_jax --version for versions.")
        sys.exit(0 if arguments else 2)
    if arguments == ["--version"]:
        _print_versions()
        sys.exit(0)
    if arguments[0] not in summaries:
        print(f"error: unknown command '{arguments[0]}': {nearest(arguments[0], summaries)}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(f"plm_jax.cli.{arguments[0]}", run_name="__main__", alter_sys=True)


def _print_versions() -> None:
    from plm_jax.runs import run_directory  # Imports JAX, which takes seconds.

    versions = {"plm_jax": __version__, "python": platform.python_version(), **run_directory.versions()}
    print("\n".join(f"{name} {version}" for name, version in versions.items()))


if __name__ == "__main__":
    main()
