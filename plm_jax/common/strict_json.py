"""Parsing of untrusted JSON. Rejects ambiguous files, and files that need more memory or stack than any real file."""

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from plm_jax.common import storage

# Limit of safetensors for a header; the largest published tokenizer.json has 61 MB.
MOST_BYTES = 100_000_000
# The largest published tokenizer.json has two million; a value needs up to 150 bytes in Python.
MOST_VALUES = 2**22
MOST_DEPTH = 64


def read(path: str) -> Any:
    """Parses a JSON file; raises the errors of `loads` and `storage.read`."""
    return loads(storage.read(path, MOST_BYTES))


def loads(data: bytes) -> Any:
    """Parses JSON.

    Raises:
      ValueError: the data is not JSON in UTF-8, repeats a name within an object, contains NaN, an infinity or a number
        such as 1e400 that overflows a float, or exceeds the limits on bytes, values or depth.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data):,} bytes of JSON, more than the limit of {MOST_BYTES:,}")
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values of JSON")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("it begins with a byte order mark: save it without")
    try:
        tree = parse(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {MOST_DEPTH} levels") from None
    _check_depth(tree)
    return tree


def parse(text: str) -> Any:
    """Parses JSON without the limits of `loads` on bytes, values and depth.

    Raises:
      ValueError: the text is not JSON, repeats a name within an object, or contains NaN, an infinity or a number such
        as 1e400 that overflows a float.
      RecursionError: the text is nested too deeply for Python.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names: set[str] = set()
        repeated = next(name for name, _ in pairs if name in names or names.add(name))
        raise ValueError(f"{repeated[:100]!r} is repeated in an object")
    return members


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"{number[:100]} is out of the range of floating-point numbers")
    return float(number)


def _check_depth(tree: Any) -> None:
    level, depth = [tree], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(f"JSON nested deeper than {MOST_DEPTH} levels")
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
