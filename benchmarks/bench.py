"""Harness of the benchmarks: flags from a function's parameters, one JSON object, fresh processes, rounds in turn."""

import argparse
import importlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
# Calls a function of a script; its own output goes to stderr, so that stdout has the result alone.
_CALL = """
import json, os, sys
folder, name, function, arguments = sys.argv[1:]
sys.path.insert(0, folder)
import bench
result = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
json.dump(bench.function(name, function)(*json.loads(arguments)), result)
"""


def main(run: Callable[..., dict[str, Any]], **choices: Sequence[str]) -> None:
    """Runs a benchmark and prints its result and the machine as a JSON object.

    Args:
      run: benchmark; its parameters become flags, its docstring's `Args` their help, its module's docstring the
        description. A parameter with a tuple as default takes several values.
      choices: values that a flag accepts.
    """
    description = inspect.getmodule(run).__doc__
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    helps = dict(re.findall(r"^ {6}(\w+): (.*)$", run.__doc__ or "", re.MULTILINE))
    for name, parameter in inspect.signature(run).parameters.items():
        default = None if parameter.default is parameter.empty else parameter.default
        options: dict[str, Any] = {"help": helps.get(name), "default": default, "choices": choices.get(name)}
        if isinstance(default, bool):
            options = {"help": helps.get(name), "action": "store_true"}
        elif isinstance(default, tuple):
            options |= {"nargs": "+", "type": type(default[0])}
        elif default is not None:
            options |= {"type": type(default)}
        parser.add_argument(f"--{name}", required=parameter.default is parameter.empty, **options)
    flags = vars(parser.parse_args())
    about = {"benchmark": pathlib.Path(sys.argv[0]).stem, "machine": machine.describe(), "flags": flags}
    print(json.dumps(about | run(**flags), indent=2))


def function(script: str, name: str) -> Callable[..., Any]:
    """Returns a function of a script by name."""
    return getattr(importlib.import_module(script), name)


def command(call: Callable[..., Any], *arguments: Any, python: str = sys.executable) -> list[str]:
    """Returns the command that calls a function of a script in a new process and prints its result as JSON."""
    path = pathlib.Path(inspect.getfile(call)).resolve()
    return [python, "-c", _CALL, str(path.parent), path.stem, call.__name__, json.dumps(arguments)]


def fresh(call: Callable[..., Any], *arguments: Any, python: str = sys.executable, **options: Any) -> Any:
    """Calls a function of a script in a new process; arguments and result must be JSON.

    Args:
      call: function of a module.
      arguments: its arguments.
      python: program that runs it.
      options: of `subprocess.run`.
    """
    words = command(call, *arguments, python=python)
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options)
    result = json.loads(done.stdout)
    log(f"{call.__name__}{arguments}: {result}"[:500])
    return result


def verb(name: str, *flags: str, **options: Any) -> None:
    """Runs a plm_jax command in a new process, with its output on stderr."""
    subprocess.run([sys.executable, "-m", "plm_jax", name, *flags], check=True, cwd=ROOT, stdout=sys.stderr, **options)


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Calls each contestant once in each round; returns the wall seconds of each call by name."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def log(text: str) -> None:
    """Prints a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def json_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the rows of a JSON Lines file."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
