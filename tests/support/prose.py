"""Checks of the language of the code: first words of docstrings, names without meaning, and long functions.

    python -m tests.support.prose [PATH...]

prints each finding as `FILE:LINE: MESSAGE` and exits with status 1 if there is one. The default path is the package.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "plm_jax"
# Words with which no docstring begins; functions begin with a verb in the third person, classes with a noun.
FIRST_WORDS = re.compile(r"(What|Which|Whichever|How|Of|Those|That|See|As|Where|Its?|Such|So)\b")
# Names that do not say what they name.
FILLERS = frozenset(
    ["found", "told", "tell", "own", "given", "held", "kept", "seen", "wanted", "others", "made", "place", "places"]
)
BRITISH = re.compile(r"\b\w*((token|normal|initial|optim|minim|maxim|summar)is(e|i|a)|behaviour|colour)\w*\b", re.I)
MAX_LINES = 60


class Finding(NamedTuple):
    """A place in the code that breaks a rule; `rule` is `docstring`, `name`, `length` or `spelling`."""

    rule: str
    path: pathlib.Path
    line: int
    message: str


def check(path: pathlib.Path) -> Iterator[Finding]:
    """Yields the findings of a file."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            if match := FIRST_WORDS.match(docstring):
                yield Finding("docstring", path, line, f"the docstring begins with '{match[1]}'")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in FILLERS:
            yield Finding("name", path, line, f"'{node.id}' does not say what it names")
        if isinstance(node, ast.FunctionDef):
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                if argument.arg in FILLERS:
                    yield Finding("name", path, argument.lineno, f"'{argument.arg}' does not say what it names")
            length = node.end_lineno - node.lineno + 1
            if length > MAX_LINES:
                yield Finding("length", path, line, f"'{node.name}' has {length} lines, more than {MAX_LINES}")
    for number, line_text in enumerate(text.splitlines(), 1):
        if match := BRITISH.search(line_text):
            yield Finding("spelling", path, number, f"'{match[0]}': use the American spelling")


def check_all(paths: list[pathlib.Path]) -> list[Finding]:
    """Returns the findings of files and of every Python file in folders."""
    files = (file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))
    return [finding for file in files for finding in check(file)]


if __name__ == "__main__":
    findings = check_all([pathlib.Path(name).resolve() for name in sys.argv[1:]] or [PACKAGE])
    for finding in findings:
        print(f"{finding.path.relative_to(ROOT)}:{finding.line}: {finding.message}")
    sys.exit(bool(findings))
