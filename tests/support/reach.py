"""Counts the files and lines of the package that run while a training step of a demo is built and traced.

    python -m tests.support.reach gpt2

prints `{"program": {"files": …, "lines": …}, "state": {…}, "step": {…}}`: building the program of a run, the shapes of
its state (which traces the model once), and tracing the step. Lines are those of every function that is entered,
without docstrings, comments and blank lines.
"""

import ast
import collections
import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator

PACKAGE = pathlib.Path(__file__).parents[2] / "plm_jax"


@contextlib.contextmanager
def entered(functions: dict[pathlib.Path, set[str]]) -> Iterator[None]:
    """Records the qualified names of the functions of the package that are entered, by file."""
    root = f"{PACKAGE}/"

    def trace(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            functions[pathlib.Path(frame.f_code.co_filename)].add(frame.f_code.co_qualname)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def count(path: pathlib.Path, names: set[str]) -> int:
    """Returns the number of lines of these functions of a file, including nested functions."""
    text = path.read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))

    def is_code(number: int) -> bool:
        line = lines[number - 1].strip()
        return bool(line) and not line.startswith("#") and number not in docstrings

    def within(node: ast.AST, prefix: str) -> int:
        total = 0
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and prefix + child.name in names:
                total += sum(map(is_code, range(child.lineno, child.end_lineno + 1)))
            elif isinstance(child, ast.FunctionDef):
                total += within(child, f"{prefix}{child.name}.<locals>.")
            else:
                total += within(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)
        return total

    return within(tree, "")


def measure(size: str) -> dict[str, dict[str, int]]:
    """Returns the numbers of files and lines for the program of a demo, the shapes of its state, and its step."""
    import jax

    from plm_jax import config
    from plm_jax.config import files
    from plm_jax.models import registry
    from plm_jax.planning.plan import step_inputs
    from plm_jax.runs.programs import Programs

    config_file = files.load(f"demo:{size}")
    run, devices = config.resolve(config_file.config(), config_file.file), jax.devices()[:1]
    programs = Programs(run, devices)
    inputs = step_inputs(programs, programs.phases[0])
    programs.first.phase_step(programs.phases[0]).lower(
        *inputs
    )  # The first lowering imports modules of JAX, which do not count.
    registry.boxed_shapes.cache_clear()
    jax.clear_caches()
    functions = {name: collections.defaultdict(set) for name in ("program", "state", "step")}
    with entered(functions["program"]):
        program = Programs(run, devices).first
    with entered(functions["state"]):
        state = program.abstract_state
        assert program.published_state and program.shardings
    with entered(functions["step"]):
        program.phase_step(programs.phases[0]).lower(state, *inputs[1:])
    return {
        name: {"files": len(names), "lines": sum(count(path, entered_names) for path, entered_names in names.items())}
        for name, names in functions.items()
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
