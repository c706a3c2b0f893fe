"""Damage to files, folders and trees of JSON, which the campaigns of `faults.py` share."""

import json
import os
import pathlib
import random
import shutil
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Values that hardly any field of a JSON file accepts.
ODD: tuple[Any, ...] = (-1, 0, 2**31, 10**7, 10**12, 10**30, 10**400, 1.5, 1e300, -1e300, "12", "", True, None)
ODD += ([], {}, [[]], [1], {"a": 1}, "x" * 10**6)
# Contents of a JSON file that are not valid for any file that the package reads.
DOCUMENTS = (
    *(b"", b"[]", b"null", b'"text"', b"{", b"{} {}", b"\xef\xbb\xbf{}", b'{"a": 1, "a": 2}', b'{"a": NaN}'),
    *(b'{"a": "\xff"}', "{}".encode("utf-16"), b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
)


def _range(data: bytes, rng: random.Random, most: int) -> slice:
    begin = rng.randrange(len(data))
    return slice(begin, min(len(data), begin + rng.randint(1, most)))


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _replaced(data: bytes, rng: random.Random, make: Callable[[int], bytes], most: int = 64) -> bytes:
    changed, part = bytearray(data), _range(data, rng, most)
    changed[part] = make(part.stop - part.start)
    return bytes(changed)


def _doubled(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(1, len(data) + 1)
    return data[:at] + data[at // 2 :]


# Changes of the bytes of a file that is not empty.
BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": _flipped,
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "zeroed": lambda data, rng: _replaced(data, rng, bytes, 4096),
    "random": lambda data, rng: _replaced(data, rng, rng.randbytes),
    "longer": lambda data, rng: data + rng.randbytes(rng.randint(1, 4096)),
    "doubled": _doubled,
    "shorter": lambda data, rng: _replaced(data, rng, lambda size: b"", 300),
    "inserted": lambda data, rng: data[: (at := rng.randrange(len(data)))] + rng.randbytes(99) + data[at:],
}


def garbled(data: bytes, rng: random.Random, kinds: Sequence[str] = tuple(BYTES)) -> tuple[bytes, str]:
    """Changes bytes in one of the ways of BYTES; returns them and the way."""
    kind = rng.choice(kinds)
    changed = BYTES[kind](data or b"\0", rng)
    return (_flipped(data or b"\0", rng) if changed == data else changed), kind


def garble(path: pathlib.Path, rng: random.Random, kinds: Sequence[str] = tuple(BYTES)) -> str:
    """Changes the bytes of a file in place, under its readers; a hard link is first replaced by a copy."""
    data, kind = garbled(path.read_bytes(), rng, kinds)
    if path.stat().st_nlink > 1:
        path.unlink()
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()
    return kind


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _add(path: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> None:
    names = (
        "new",
        ".hidden",
        "manifest-part-1.json",
        "model-00002-of-00002.safetensors",
        f"{path.stem}-2{path.suffix}",
    )
    names += ("tokens-00007.array_record", "word_starts.npy")
    if not (other := path.parent / rng.choice(names)).exists():
        other.write_bytes(rng.randbytes(10))


def _link(path: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> None:
    copy = folder.parent / "linked"
    path.rename(copy)
    path.symlink_to(copy)


def _swap(path: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> None:
    content = path.read_bytes()
    candidates = [other for other in files_of(folder) if other.read_bytes() != content]
    if candidates:
        other, aside = rng.choice(candidates), path.with_name("aside")
        path.rename(aside), other.rename(path), aside.rename(other)


def _empty(path: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> None:
    content = b"" if path.stat().st_size else b"x"
    path.unlink()  # It may be a hard link.
    path.write_bytes(content)


# Changes of a file of a folder.
FILES: dict[str, Callable[[pathlib.Path, pathlib.Path, random.Random], Any]] = {
    "missing": lambda path, folder, rng: path.unlink(),
    "emptied": _empty,
    "added": _add,
    "linked": _link,
    "swapped": _swap,
}


def damage(folder: pathlib.Path, sources: Sequence[pathlib.Path], rng: random.Random, is_replaceable: bool) -> str:
    """Damages a folder and returns a description.

    Args:
      folder: a checkpoint or a converted directory.
      sources: folders whose files may replace those of `folder`.
      rng: random numbers.
      is_replaceable: whether to replace a subfolder or the whole, too.
    """
    path, other = rng.choice(files_of(folder)), rng.choice(sources)
    wholes = ("part", "whole") if is_replaceable else ()
    kind = rng.choice((*BYTES, *FILES, "another's", *wholes))
    if kind in BYTES:
        garble(path, rng, (kind,))
    elif kind in FILES:
        FILES[kind](path, folder, rng)
    elif kind == "whole":
        shutil.rmtree(folder)
        shutil.copytree(other, folder)
        return f"exchanged for {other}"
    else:
        names = [path.relative_to(folder) for path in files_of(folder) if (other / path.relative_to(folder)).exists()]
        names = [name for name in names if (other / name).read_bytes() != (folder / name).read_bytes()]
        if not names:
            return garble(path, rng)
        path = folder / rng.choice(names)
        top = path.relative_to(folder).parts[0]
        for name in [path.relative_to(folder)] if kind == "another's" else names:
            if name.parts[0] == top:
                shutil.copy(other / name, folder / name)
    return f"{kind}: {path.relative_to(folder)}"


def paths(tree: Any, path: tuple = ()) -> Iterable[tuple]:
    """Yields the path of every node of a JSON tree."""
    if path:
        yield path
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from paths(child, (*path, key))


def spoil(tree: Any, rng: random.Random, removed: float = 0.0, by_depth: bool = False, other_type: bool = False) -> str:
    """Removes a node of a JSON tree or sets it to a value of ODD; returns a description.

    Args:
      tree: tree that is changed.
      rng: random numbers.
      removed: share of the cases that remove the node.
      by_depth: whether every depth is equally likely, although most nodes are deep.
      other_type: whether the new value has another type than the old one, so that it is wrong in any case.
    """
    nodes = list(paths(tree))
    if by_depth:
        depth = rng.choice(sorted({len(node) for node in nodes}))
        nodes = [node for node in nodes if len(node) == depth]
    *parents, last = rng.choice(nodes)
    for key in parents:
        tree = tree[key]
    if rng.random() < removed:
        del tree[last]
        return f"{[*parents, last]} is removed"
    tree[last] = rng.choice([value for value in ODD if not other_type or type(value) is not type(tree[last])])
    return f"{[*parents, last]} is {str(tree[last])[:50]}"


def change_json(path: pathlib.Path, change: Callable[[Any], Any]) -> Any:
    """Rewrites a JSON file after a change in place; returns what the change returns."""
    tree = json.loads(path.read_text())
    result = change(tree)
    path.write_text(json.dumps(tree))
    return result


# Things other than a file at a file's path; each is wrong.
PLACES: dict[str, Callable[[pathlib.Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": pathlib.Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "a socket": lambda path: _bind(path),
    "nothing": lambda path: path.write_bytes(b""),
    "4 GB of nothing": lambda path: (path.touch(), os.truncate(path, 2**32)),
}


def _bind(path: pathlib.Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # The name of a socket is short.
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(before)


def replace(path: pathlib.Path, rng: random.Random) -> str:
    """Replaces a file by one of PLACES; returns a description."""
    kind = rng.choice(list(PLACES))
    path.unlink()
    PLACES[kind](path)
    return f"{path.name} is {kind}"
