"""Cases of `faults_files.py` with wrong weights: safetensors, and ELMo's HDF5."""

import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import faults_damage
from faults_files_cases import Case, Change, Make, Target, copied, in_json

Header = dict[str, Any]


def _parse(data: bytes) -> tuple[Header, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _sized(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def _join(header: Header, body: bytes) -> bytes:
    return _sized(json.dumps(header).encode("utf-8")) + body


def _names(header: Header) -> list[str]:
    return [name for name in header if name != "__metadata__"]


def _with(**fields: Any) -> Callable[[Header, str], None]:
    return lambda header, name: header[name].update(fields)


def _shifted(header: Header, by: int) -> None:
    """Moves every tensor except the first."""
    for name in _names(header):
        begin, end = header[name]["data_offsets"]
        if begin:
            header[name]["data_offsets"] = [begin + by, end + by]


def _overlap(header: Header, name: str) -> None:
    """Gives two tensors of the same size the same offsets."""
    size = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
    rest = [other for other in _names(header) if other != name]
    same = [o for o in rest if header[o]["data_offsets"][1] - header[o]["data_offsets"][0] == size]
    header[same[0] if same else rest[0]]["data_offsets"] = header[name]["data_offsets"]


def _offsets(make: Callable[[int, int], list]) -> Callable[[Header, str], None]:
    def change(header: Header, name: str) -> None:
        header[name]["data_offsets"] = make(*header[name]["data_offsets"])

    return change


# Changes of a header and the name of one of its tensors; each is wrong.
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


def _in_header(what: str, change: Callable[[Header, str], Any]) -> Change:
    def changed(data: bytes, rng: random.Random) -> bytes:
        header, body = _parse(data)
        change(header, rng.choice(_names(header)))
        return _join(header, body + bytes(8 * (what == "a gap")))

    return changed


# Bytes of a file from its header and its body; each is wrong.
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
    "more after the end": lambda header, body: _sized(header) + body + b"\0",
    "less at the end": lambda header, body: _sized(header) + body[:-1],
    "no body": lambda header, body: _sized(header),
    "a name twice": lambda header, body: _sized(header.replace(b"{", b'{"a":{},"a":{},', 1)) + body,
    "a header of no text": lambda header, body: _sized(b"\xff\xfe" + header[2:]) + body,
    "a header that is a list": lambda header, body: _sized(b"[" + header + b"]") + body,
    "a pickle": lambda header, body: b"\x80\x04\x95" + body,
    "a zip": lambda header, body: b"PK\x03\x04" + body,
}


def _whole(make: Callable[[bytes, bytes], bytes]) -> Change:
    def changed(data: bytes, rng: random.Random) -> bytes:
        header, body = _parse(data)
        return make(json.dumps(header).encode("utf-8"), body)

    return changed


def _garbled_header(data: bytes, rng: random.Random) -> bytes:
    end = 8 + int.from_bytes(data[:8], "little")
    return faults_damage.garbled(data[:end], rng)[0] + data[end:]


# Files that an index of shards gives for a tensor, besides another shard; each is wrong.
SHARDS: tuple[Any, ...] = (
    "/dev/zero",
    "/dev/stdin",
    "..",
    "",
    ".",
    "model-\n.safetensors",
    "no.safetensors",
    "config.json",
)
SHARDS += ("\0.safetensors", "x" * 10**5 + ".safetensors", 7, None, ["model-00001-of-00002.safetensors"])


def _misplaced(tree: dict[str, Any], rng: random.Random) -> None:
    shards = tree["weight_map"]
    name = rng.choice(list(shards))
    rest = sorted({shard for shard in shards.values() if shard != shards[name]})
    shards[name] = rng.choice((*SHARDS, f"../sharded/{shards[name]}", f"./{shards[name]}", rest[0]))


def twice(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Puts a tensor into two shards."""
    path = copied(bases, folder, "sharded")
    first, second = sorted(path.glob("model-*.safetensors"))[:2]
    (tree, body), (other_tree, other_body) = _parse(first.read_bytes()), _parse(second.read_bytes())
    name = rng.choice(_names(tree))
    begin, end = tree[name]["data_offsets"]
    other_tree[name] = tree[name] | {"data_offsets": [len(other_body), len(other_body) + end - begin]}
    second.write_bytes(_join(other_tree, other_body + body[begin:end]))
    return Case(f"{name} is in two shards", True, str(path))


_HEADERS = {what: _in_header(what, change) for what, change in CHANGES.items()}
_FILE = "model.safetensors"
SAFETENSORS: list[Make] = [
    *[Target(("gpt2", "bert", "converted"), _FILE, _HEADERS)] * 2,
    Target(("gpt2", "albert"), _FILE, {what: _whole(make) for what, make in FILES.items()}),
    Target(("sharded",), f"{_FILE}.index.json", {"a misplaced tensor": in_json(_misplaced)}),
    twice,
    Target(("gpt2",), _FILE, {"garbled header": _garbled_header}, is_bad=False),
]


def _dataset(weights: Any, rng: random.Random) -> str:
    names: list[str] = []
    weights.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
    return rng.choice(names)


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


def _again(weights: Any, name: str, **options: Any) -> None:
    del weights[name]
    weights.create_dataset(name, **options)


def _soft_link(weights: Any, name: str, folder: pathlib.Path) -> None:
    import h5py

    del weights[name]
    weights[name] = h5py.SoftLink("/nowhere")


# Changes of an array of a file of HDF5; each is wrong.
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
    """Changes an array of an ELMo."""
    import h5py

    path = copied(bases, folder, "elmo")
    what = rng.choice(list(STORED))
    with h5py.File(path / "weights.hdf5", "r+") as weights:
        name = _dataset(weights, rng)
        STORED[what](weights, name, folder)
    return Case(f"{name}: {what}", True, str(path))


def _garbled(data: bytes, rng: random.Random) -> bytes:
    """Changes bytes up to ten times, sometimes of the beginning alone."""
    for _ in range(rng.choice((1, 3, 10))):
        data = faults_damage.garbled(data[:4096] if rng.random() < 0.1 else data, rng)[0]
    return data


def _size(tree: dict[str, Any], rng: random.Random) -> None:
    section, name = rng.choice(
        [("char_cnn", "n_highway"), ("lstm", "n_layers"), ("lstm", "dim"), ("char_cnn", "filters")]
    )
    tree[section][name] = rng.choice((0, -1, 10**6, 10**12, 10**400, "x", None, [], [[1, 10**9]], [[10**9, 4]] * 100))


HDF5: list[Make] = [
    array,
    Target(("elmo",), "weights.hdf5", {"garbled bytes": _garbled}, is_bad=False),
    Target(("elmo",), "options.json", {"a wrong size": in_json(_size)}),
]
