"""Command line of plm_jax: `plm_jax VERB --flag=value …` or `python -m plm_jax VERB …`. A verb is a file of `cli/`."""

import ast
import pathlib
import re
import runpy
import sys

from plm_jax.common import interrupts
from plm_jax.common.errors import nearest

_PACKAGE = pathlib.Path(__file__).parent


def verbs() -> dict[str, str]:
    """Returns the summary of every verb: each file of `cli/` has a docstring that begins with its command."""
    found = {}
    for path in sorted(_PACKAGE.glob("cli/*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if told := re.match(r"`python -m plm_jax (\w+)[^`]*`: (.*)", docstring):
            found[told[1]] = told[2]
    return dict(sorted(found.items()))


def main() -> None:
    """Runs the verb that the command line names, or lists the verbs."""
    interrupts.end_at_interrupt()
    found, given = verbs(), sys.argv[1:2]
    if given in ([], ["-h"], ["--help"], ["help"]):
        print("plm_jax VERB --flag=value …; plm_jax VERB --help tells a verb's flags.\n")
        print("\n".join(f"  {name:<12}{told}" for name, told in found.items()))
        sys.exit(0 if given else 2)
    if given[0] not in found:
        print(f"error: there is no verb '{given[0]}': {nearest(given[0], found)}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(f"plm_jax.cli.{given[0]}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
