"""Command line of plm_jax: `plm_jax VERB --flag=value …` or `python -m plm_jax VERB …`. A verb is a file of `cli/`."""

import ast
import pathlib
import platform
import re
import runpy
import sys

from plm_jax import __version__
from plm_jax.common import interrupts
from plm_jax.common.errors import nearest

_PACKAGE = pathlib.Path(__file__).parent


def verbs() -> dict[str, str]:
    """Returns the summary of every verb: each file of `cli/` has a docstring that begins with its command."""
    summaries = {}
    for path in sorted(_PACKAGE.glob("cli/*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if match := re.match(r"`python -m plm_jax (\w+)[^`]*`: (.*)", docstring):
            summaries[match[1]] = match[2]
    return dict(sorted(summaries.items()))


def main() -> None:
    """Runs the verb that the command line names, lists the verbs, or prints versions."""
    interrupts.end_at_interrupt()
    summaries, arguments = verbs(), sys.argv[1:2]
    if arguments in ([], ["-h"], ["--help"], ["help"]):
        print("plm_jax VERB --flag=value …; plm_jax VERB --help lists the flags of a verb.\n")
        print("\n".join(f"  {name:<12}{summary}" for name, summary in summaries.items()))
        sys.exit(0 if arguments else 2)
    if arguments == ["--version"]:
        _print_versions()
        sys.exit(0)
    if arguments[0] not in summaries:
        print(f"error: there is no verb '{arguments[0]}': {nearest(arguments[0], summaries)}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(f"plm_jax.cli.{arguments[0]}", run_name="__main__", alter_sys=True)


def _print_versions() -> None:
    from plm_jax.runs import run_directory  # Imports JAX, which takes seconds.

    versions = {"plm_jax": __version__, "python": platform.python_version(), **run_directory.versions()}
    print("\n".join(f"{name} {version}" for name, version in versions.items()))


if __name__ == "__main__":
    main()
