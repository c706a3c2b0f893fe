"""Writes tests/golden/configs: every config as its page has it, a line a field.

    python -m tests.golden.make_configs

One file a page. Its first size is there in full; of the others what they have otherwise.
"""

import json
import pathlib

from plm_jax import config
from plm_jax.config import files as pages

FOLDER = pathlib.Path(__file__).with_name("configs")
NOT_THERE = "not there"


def sizes(name: str) -> list[str]:
    """The sizes of a page; the demo's runs."""
    module = pages.load(name).module
    return list(getattr(module, "PUBLISHED", None) or getattr(module, "RUNS", ()))


def lines(value, path: str) -> dict[str, str]:
    """The fields of a tree, by their dotted paths."""
    phases = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if not value or not (phases or isinstance(value, dict)):
        return {path: json.dumps(value, ensure_ascii=False)}
    items = enumerate(value) if phases else value.items()
    return {k: v for name, item in items for k, v in lines(item, f"{path}.{name}".removeprefix(".")).items()}


def text(name: str) -> str:
    """What the file of a page holds."""
    told, first = [], {}
    for size in sizes(name):
        run = config.from_dict(pages.load(f"{name}:{size}").config())
        fields = lines(json.loads(json.dumps(config.to_dict(run))), "")
        other = {k: fields.get(k, NOT_THERE) for k in first | fields if fields.get(k) != first.get(k)}
        told += [f"{name}:{size}", *(f"    {field} = {value}" for field, value in other.items())]
        first = first or fields
    return "\n".join(told) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in filter(sizes, pages.names()):
        (FOLDER / f"{name}.txt").write_text(text(name))
