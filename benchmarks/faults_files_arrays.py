"""The cases of `faults_files.py` whose weights are bad: safetensors, and ELMo's HDF5."""

import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

from faults_files_cases import Case, copied, garbled, reseal

Header = dict[str, Any]


def _read(path: pathlib.Path) -> tuple[Header, bytes]:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _write(path: pathlib.Path, header: Header | bytes, body: bytes) -> None:
    data = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8")
    path.write_bytes(len(data).to_bytes(8, "little") + data + body)


def _names(header: Header) -> list[str]:
    return [name for name in header if name != "__metadata__"]


def _with(**fields: Any) -> Callable[[Header, str], None]:
    return lambda header, name: header[name].update(fields)


def _shifted(header: Header, by: int) -> None:
    """Each tensor but the first begins later, or earlier."""
    for name in _names(header):
        begin, end = header[name]["data_offsets"]
        if begin:
            header[name]["data_offsets"] = [begin + by, end + by]


def _overlap(header: Header, name: str) -> None:
    """Two tensors of one size lie in one place."""
    size = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
    others = [other for other in _names(header) if other != name]
    same = [o for o in others if header[o]["data_offsets"][1] - header[o]["data_offsets"][0] == size]
    header[same[0] if same else others[0]]["data_offsets"] = header[name]["data_offsets"]


def _offsets(make: Callable[[int, int], list]) -> Callable[[Header, str], None]:
    def change(header: Header, name: str) -> None:
        header[name]["data_offsets"] = make(*header[name]["data_offsets"])

    return change


# What is changed in a header; each is bad.
CHANGES: dict[str, Callable[[Header, str], Any]] = {
    "an overlap": _overlap,
    "a gap": lambda header, name: _shifted(header, 8),
    "an overlap of all": lambda header, name: _shifted(header, -4),
    "offsets below 0": _offsets(lambda begin, end: [begin - end - 1, -1]),
    "offsets of decimals": _offsets(lambda begin, end: [float(begin), float(end)]),
    "offsets of yes and no": _offsets(lambda begin, end: [False, True]),
    "offsets of texts": _offsets(lambda begin, end: [str(begin), str(end)]),
    "offsets the other way round": _offsets(lambda begin, end: [end, begin]),
    "offsets beyond the file": _offsets(lambda begin, end: [begin + 2**40, end + 2**40]),
    "offsets beyond all": _offsets(lambda begin, end: [begin + 10**40, end + 10**40]),
    "three offsets": _offsets(lambda begin, end: [begin, end, end]),
    "no offsets": _offsets(lambda begin, end: []),
    "another type": _with(dtype="F64"),
    "an unknown type": _with(dtype="F33"),
    "a type that is no name": _with(dtype=["F32"]),
    "integers": _with(dtype="I32"),
    "another shape": _with(shape=[3, 5, 7]),
    "a shape below 0": _with(shape=[-2, -4]),
    "a huge shape": _with(shape=[2**62, 4]),
    "a shape of decimals": _with(shape=[2.0, 4.0]),
    "a shape of yes": _with(shape=[True]),
    "a shape that is none": _with(shape=None),
    "a shape of 100,000 axes": _with(shape=[1] * 100_000),
    "an empty shape of 10**12": _with(shape=[0, 10**12], data_offsets=[0, 0]),
    "another field": _with(extra=1),
    "no type": lambda header, name: header[name].pop("dtype"),
    "no entry": lambda header, name: header.update({name: None}),
    "a tensor less": lambda header, name: header.pop(name),
    "a tensor of another name": lambda header, name: header.update({"x" * 10**6: header.pop(name)}),
    "metadata that is none": lambda header, name: header.update(__metadata__={"a": 1}),
    "300,000 empty tensors": lambda header, name: header.update(
        {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(300_000)}
    ),
}


def header(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A header says something that the format forbids."""
    path = copied(bases, folder, rng.choice(("gpt2", "bert", "converted")))
    file = path / "model.safetensors"
    tree, body = _read(file)
    what = rng.choice(list(CHANGES))
    CHANGES[what](tree, rng.choice(_names(tree)))
    _write(file, tree, body + bytes(8 * (what == "a gap")))
    reseal(path)
    return Case(f"{path.name}: {what}", True, str(path))


# The bytes of a file, from its header and its body; each is bad.
FILES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "none": lambda header, body: b"",
    "seven": lambda header, body: bytes(7),
    "a length alone": lambda header, body: (10).to_bytes(8, "little"),
    "no header": lambda header, body: bytes(8) + body,
    "a header longer than the file": lambda header, body: (10**9).to_bytes(8, "little") + header + body,
    "the longest header": lambda header, body: b"\xff" * 8 + header + body,
    "a header cut": lambda header, body: (len(header) - 9).to_bytes(8, "little") + header + body,
    "a header of 200 MB": lambda header, body: (2 * 10**8).to_bytes(8, "little") + header.ljust(2 * 10**8) + body,
    "a header of lists": lambda header, body: (9 * 10**7).to_bytes(8, "little") + b"[" * (9 * 10**7),
    "more after the end": lambda header, body: len(header).to_bytes(8, "little") + header + body + b"\0",
    "less at the end": lambda header, body: len(header).to_bytes(8, "little") + header + body[:-1],
    "no body": lambda header, body: len(header).to_bytes(8, "little") + header,
    "a name twice": lambda header, body: _sized(header.replace(b"{", b'{"a":{},"a":{},', 1)) + body,
    "a header of no text": lambda header, body: _sized(b"\xff\xfe" + header[2:]) + body,
    "a header that is a list": lambda header, body: _sized(b"[" + header + b"]") + body,
    "a pickle": lambda header, body: b"\x80\x04\x95" + body,
    "a zip": lambda header, body: b"PK\x03\x04" + body,
}


def _sized(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def file(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A file is none of safetensors'."""
    path = copied(bases, folder, rng.choice(("gpt2", "albert")))
    weights = path / "model.safetensors"
    tree, body = _read(weights)
    what = rng.choice(list(FILES))
    weights.write_bytes(FILES[what](json.dumps(tree).encode("utf-8"), body))
    return Case(what, True, str(path))


def _other(shards: list[str], shard: str) -> str:
    return next(other for other in shards if other != shard)


def index(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """An index of shards says something else than the shards, or leads elsewhere."""
    path = copied(bases, folder, "sharded")
    place = path / "model.safetensors.index.json"
    tree = json.loads(place.read_text())
    names = tree["weight_map"]
    shards, name = sorted(set(names.values())), rng.choice(list(names))
    odd: list[Any] = [
        f"../sharded/{names[name]}",
        str(path / names[name]),
        f"./{names[name]}",
        "/dev/zero",
        "/dev/stdin",
        "..",
        "",
        ".",
        "model-\n.safetensors",
        "no.safetensors",
        "\0.safetensors",
        "x" * 10**5 + ".safetensors",
        "config.json",
        7,
        None,
        [shards[0]],
        _other(shards, names[name]),
    ]
    value = rng.choice(odd)
    names[name] = value
    place.write_text(json.dumps(tree))
    return Case(f"{name} is in {str(value)[:50]!r}", True, str(path))


def twice(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A tensor is in two shards."""
    path = copied(bases, folder, "sharded")
    first, second = sorted(path.glob("model-*.safetensors"))[:2]
    (tree, body), (others, more) = _read(first), _read(second)
    name = rng.choice(_names(tree))
    begin, end = tree[name]["data_offsets"]
    others[name] = tree[name] | {"data_offsets": [len(more), len(more) + end - begin]}
    _write(second, others, more + body[begin:end])
    return Case(f"{name} is in two shards", True, str(path))


def header_bytes(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Bytes of a header are others."""
    path = copied(bases, folder, "gpt2")
    weights = path / "model.safetensors"
    data = weights.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    changed, what = garbled(data[:end], rng)
    weights.write_bytes(changed + data[end:])
    return Case(what, False, str(path))


SAFETENSORS = [header, header, file, index, twice, header_bytes]


def _dataset(weights: Any, rng: random.Random) -> str:
    found: list[str] = []
    weights.visititems(lambda name, item: found.append(name) if hasattr(item, "shape") else None)
    return rng.choice(found)


def _external_link(weights: Any, name: str, folder: pathlib.Path) -> None:
    import h5py

    data = weights[name][...]
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["x"] = data
    del weights[name]
    weights[name] = h5py.ExternalLink(str(folder / "other.hdf5"), "x")


def _external_storage(weights: Any, name: str, folder: pathlib.Path) -> None:
    data = weights[name][...]
    (folder / "raw").write_bytes(data.tobytes())
    del weights[name]
    weights.create_dataset(name, data.shape, data.dtype, external=[(str(folder / "raw"), 0, data.nbytes)])


def _virtual(weights: Any, name: str, folder: pathlib.Path) -> None:
    import h5py

    data = weights[name][...]
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["x"] = data
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    layout[...] = h5py.VirtualSource(str(folder / "other.hdf5"), "x", data.shape)
    del weights[name]
    weights.create_virtual_dataset(name, layout)


def _again(weights: Any, name: str, **made: Any) -> None:
    del weights[name]
    weights.create_dataset(name, **made)


def _soft_link(weights: Any, name: str, folder: pathlib.Path) -> None:
    import h5py

    del weights[name]
    weights[name] = h5py.SoftLink("/nowhere")


# What is changed in a file of HDF5; each is bad.
STORED: dict[str, Callable[[Any, str, pathlib.Path], Any]] = {
    "a link out": _external_link,
    "a link to nowhere": _soft_link,
    "numbers elsewhere": _external_storage,
    "a virtual array": _virtual,
    "a huge array of nothing": lambda w, name, _: _again(w, name, shape=(10**9, 512), dtype="f4", chunks=(1, 512)),
    "a packed array": lambda w, name, _: _again(
        w, name, shape=(2**16, 2**10), dtype="f4", fillvalue=1, chunks=(2**10, 2**10), compression="gzip"
    ),
    "texts": lambda w, name, _: _again(w, name, data=[b"a", b"b"]),
    "integers": lambda w, name, _: _again(w, name, data=w[name][...].astype("i4")),
    "no axes": lambda w, name, _: _again(w, name, data=1.0),
    "nothing": lambda w, name, _: w.__delitem__(name),
    "a group": lambda w, name, _: (w.__delitem__(name), w.create_group(name)),
    "a group within itself": lambda w, name, _: w.__setitem__("loop", w["/"]),
}


def array(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """An array of ELMo's is elsewhere, or none."""
    import h5py

    path = copied(bases, folder, "elmo")
    what = rng.choice(list(STORED))
    with h5py.File(path / "weights.hdf5", "r+") as weights:
        name = _dataset(weights, rng)
        STORED[what](weights, name, folder)
    return Case(f"{name}: {what}", True, str(path))


def hdf5_bytes(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Bytes of a file of HDF5 are others."""
    path = copied(bases, folder, "elmo")
    weights = path / "weights.hdf5"
    data = weights.read_bytes()
    for _ in range(rng.choice((1, 3, 10))):
        data, what = garbled(data[:4096] if rng.random() < 0.1 else data, rng)
        if not data:
            break
    weights.write_bytes(data)
    return Case(f"at last {what}", False, str(path))


def options(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A size of ELMo's options is none, or not that of its arrays."""
    path = copied(bases, folder, "elmo")
    tree = json.loads((path / "options.json").read_text())
    part, name = rng.choice(
        [
            (tree["char_cnn"], "n_highway"),
            (tree["lstm"], "n_layers"),
            (tree["lstm"], "dim"),
            (tree["char_cnn"], "filters"),
        ]
    )
    part[name] = rng.choice((0, -1, 10**6, 10**12, 10**30, 10**400, "x", None, [], [[1, 10**9]], [[10**9, 4]] * 100))
    (path / "options.json").write_text(json.dumps(tree))
    return Case(f"{name} is {str(part[name])[:50]}", True, str(path))


HDF5 = [array, hdf5_bytes, options]
