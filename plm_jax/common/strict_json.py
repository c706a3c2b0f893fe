"""JSON of others: what is ambiguous is refused, and what would take more memory or stack than any real file needs."""

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from plm_jax.common import storage

# The most that safetensors takes for a header, and more than the largest published tokenizer.json has (61 MB).
MOST_BYTES = 100_000_000
# The largest published tokenizer.json has two million; one costs Python up to 150 bytes.
MOST_VALUES = 2**22
MOST_DEPTH = 64


def read(path: str) -> Any:
    """What a file of JSON says; raises as `loads`, and as `storage.read`."""
    return loads(storage.read(path, MOST_BYTES))


def loads(data: bytes) -> Any:
    """What JSON says.

    Raises:
      ValueError: it is no JSON of UTF-8, has a name twice in one object, NaN or an infinity, which JSON lacks, a number
        beyond those of 64 bits, or more bytes, values or depth than above.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data):,} bytes of JSON, at most {MOST_BYTES:,} are read")
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values of JSON")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("it begins with a byte order mark: save it without")
    try:
        tree = parse(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"JSON deeper than {MOST_DEPTH}") from None
    _check_depth(tree)
    return tree


def parse(text: str) -> Any:
    """Parses JSON of any size and depth; rejects what is ambiguous, as `loads` does.

    Raises:
      ValueError: the text is not JSON, repeats a name within an object, or has a number that no float holds.
      RecursionError: it is nested too deeply for Python.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twice[:100]!r} comes twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"{number[:100]} is beyond all numbers")
    return float(number)


def _check_depth(tree: Any) -> None:
    level, depth = [tree], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(f"JSON deeper than {MOST_DEPTH}")
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
