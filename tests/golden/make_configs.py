"""Writes tests/golden/configs: all fields of every shipped config, one per line.

    python -m tests.golden.make_configs

There is one file per config file. It has all fields of the first size, and the differences of the other sizes.
"""

import json
import pathlib

from plm_jax import config
from plm_jax.config import files as pages

FOLDER = pathlib.Path(__file__).with_name("configs")
MISSING = "not there"


def sizes(name: str) -> list[str]:
    """Returns the sizes of a config file, or the runs of the demo."""
    module = pages.load(name).module
    return list(getattr(module, "PUBLISHED", None) or getattr(module, "RUNS", ()))


def lines(value, path: str) -> dict[str, str]:
    """Returns the fields of a tree by their dotted paths."""
    phases = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if not value or not (phases or isinstance(value, dict)):
        return {path: json.dumps(value, ensure_ascii=False)}
    items = enumerate(value) if phases else value.items()
    return {k: v for name, item in items for k, v in lines(item, f"{path}.{name}".removeprefix(".")).items()}


def text(name: str) -> str:
    """Returns the text of the file of a config file."""
    rows, first = [], {}
    for size in sizes(name):
        run = config.from_dict(pages.load(f"{name}:{size}").config())
        fields = lines(json.loads(json.dumps(config.to_dict(run))), "")
        other = {k: fields.get(k, MISSING) for k in first | fields if fields.get(k) != first.get(k)}
        rows += [f"{name}:{size}", *(f"    {field} = {value}" for field, value in other.items())]
        first = first or fields
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in filter(sizes, pages.names()):
        (FOLDER / f"{name}.txt").write_text(text(name))
