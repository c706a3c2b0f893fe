"""Safetensors files: compatibility with the safetensors library, shards, buckets, damaged and invalid files."""

import json
import shlex

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.hub import files


def tensors(seed=0):
    """Arrays of every float type, with no or empty axes, and with sizes that are not aligned."""
    rng = np.random.default_rng(seed)
    shapes = {"scalar": (), "empty": (0, 3), "odd": (3,), "matrix": (5, 7), "stacked/of layers": (3, 4, 5)}
    types = (np.float16, np.float32, ml_dtypes.bfloat16, np.float64)
    return {
        f"{name} {np.dtype(dtype)}": rng.normal(size=shape).astype(dtype)
        for name, shape in shapes.items()
        for dtype in types
    }


def write(folder, arrays, **options):
    files.write(str(folder), {name: files.Content.of(array) for name, array in arrays.items()}, **options)


def read(folder):
    with files.opened(str(folder)) as stored:
        return {name: np.asarray(tensor) for name, tensor in stored.items()}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        assert got[name].tobytes() == array.tobytes(), name


def test_files_are_compatible_with_safetensors(tmp_path):
    want = tensors()
    write(tmp_path / "ours", want)
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["model.safetensors"]
    assert_same(load_file(tmp_path / "ours" / "model.safetensors"), want)
    (tmp_path / "theirs").mkdir()
    save_file(want, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    for folder in ("ours", "theirs"):
        assert_same(read(tmp_path / folder), want)


def test_tensors_are_aligned(tmp_path):
    write(tmp_path, tensors())
    data = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}[entry["dtype"]] == 0, name


def test_slices_of_first_axis(tmp_path):
    want = tensors()["stacked/of layers bfloat16"]
    write(tmp_path, {"a": want, "b": want})
    with files.opened(str(tmp_path)) as stored:
        assert_same({str(i): stored["b"][i] for i in range(3)}, {str(i): want[i] for i in range(3)})
        assert_same({"": stored["b"][1:9]}, {"": want[1:]})
        assert_same({"": stored["b"][None]}, {"": want[None]})
        assert [row.shape for row in stored["b"].parts()] == [(4, 5)] * 3


def test_equality_of_tensors(tmp_path):
    one = np.arange(24, dtype=np.float32).reshape(6, 4)
    other = one.copy()
    other[-1, -1] += 1
    write(tmp_path, {"one": one, "same": one, "other": other, "wide": one.reshape(4, 6), "scalar": one[0, 0]})
    with files.opened(str(tmp_path)) as stored:
        equal = {name: stored["one"].equals(tensor) for name, tensor in stored.items()}
        assert equal == {"one": True, "same": True, "other": False, "wide": False, "scalar": False}
        assert stored["scalar"].equals(stored["scalar"])


def test_shards_respect_size_limit_and_order(tmp_path):
    sizes = {"a": 10, "b": 20, "c": 11, "huge": 200, "d": 1}
    want = {name: np.full(size, i, np.float32) for i, (name, size) in enumerate(sizes.items())}
    write(tmp_path, want, shard_bytes=4 * 30)
    index = json.loads((tmp_path / files.INDEX).read_text())
    shard = "model-0000{}-of-00004.safetensors".format
    numbers = {"a": 1, "b": 1, "c": 2, "huge": 3, "d": 4}
    assert index["weight_map"] == {name: shard(number) for name, number in numbers.items()}
    assert index["metadata"]["total_size"] == 4 * sum(sizes.values())
    for number in range(1, 5):
        with safetensors.safe_open(tmp_path / shard(number), "numpy") as file:
            assert set(file.keys()) == {name for name, where in numbers.items() if where == number}
    assert_same(read(tmp_path), want)


def test_old_weights_are_removed(tmp_path):
    want = {"new": np.ones(3, np.float32)}
    write(tmp_path, {name: np.zeros(30, np.float32) for name in "abc"}, shard_bytes=4 * 30)
    write(tmp_path, want)
    assert_same(read(tmp_path), want)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    several = {"x": np.ones(3, np.float32), "y": np.ones(3, np.float32)}
    write(tmp_path, several, shard_bytes=12)
    assert_same(read(tmp_path), several)
    assert not (tmp_path / "model.safetensors").exists()


def test_parts_are_read_one_at_a_time(tmp_path):
    """The writer requests a part only after it has written the previous one."""
    written = []

    def parts():
        for number in range(3):
            (path,) = tmp_path.iterdir()
            written.append(path.stat().st_size)
            yield np.full((2**18,), number, np.float32)

    files.write(str(tmp_path), {"a": files.Content((3, 2**18), np.dtype(np.float32), parts)})
    assert written[0] < 200 and 2**20 < written[1] == written[2] - 2**20
    np.testing.assert_array_equal(read(tmp_path)["a"][:, 0], [0, 1, 2])


def test_failed_write_leaves_no_file(tmp_path):
    def parts():
        yield np.zeros(4, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write(str(tmp_path), {"a": files.Content((8,), np.dtype(np.float32), parts)})
    assert list(tmp_path.iterdir()) == []


def test_bucket_reads_only_requested_bytes(monkeypatch):
    folder, want = "memory://bucket/model", tensors()
    write(folder, want, shard_bytes=200)
    assert_same(read(folder), want)
    monkeypatch.setattr(storage, "download", None)
    with files.opened(folder) as stored:
        np.testing.assert_array_equal(stored["matrix float32"][2], want["matrix float32"][2])
    storage.remove("memory://bucket")


def header_of(entry):
    header = json.dumps({"a": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


RIGHT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"garbage " * 9,
        header_of(RIGHT)[:-1],
        header_of(RIGHT) + b"1",
        header_of(RIGHT | {"shape": [3]}),
        header_of(RIGHT | {"shape": 2}),
        header_of(RIGHT | {"shape": ["2"]}),
        header_of(RIGHT | {"data_offsets": [0]}),
        header_of({"dtype": "F32"}),
        header_of([]),
        (7).to_bytes(8, "little") + b'"\xff\xfe\xfd" [',
        (2).to_bytes(8, "little") + b"[]",
    ],
)
def test_damaged_file_is_reported(tmp_path, data):
    (tmp_path / "model.safetensors").write_bytes(header_of(RIGHT))
    assert read(tmp_path)["a"].tolist() == [0, 0]
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged \(.*fetch it again") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", files.PICKLES)
def test_pickle_is_rejected_with_conversion_command(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(UserError, match=r"contains a pickle.*python -c") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_conversion_command_writes_safetensors(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    want = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float16)}
    shared = torch.tensor(want["a"])
    torch.save({"a": shared, "tied": shared, "turned": shared.T}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.tensor(want["b"])}, tmp_path / "pytorch_model-00002-of-00002.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(UserError) as error:
        read(tmp_path)
    python, flag, program = shlex.split(str(error.value).partition("safetensors with ")[2])
    assert (python, flag) == ("python", "-c")
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert_same(read(tmp_path), want | {"tied": want["a"], "turned": want["a"].T})


def swapped(header):
    header["a"]["data_offsets"], header["b"]["data_offsets"] = header["b"]["data_offsets"], header["a"]["data_offsets"]


# Changes of a header that violate the format.
FORBIDDEN = {
    "overlap": lambda header: header["b"].update(data_offsets=[4, 12]),
    "gap": lambda header: header["b"].update(data_offsets=[12, 20]),
    "one place": lambda header: header["b"].update(data_offsets=[0, 8]),
    "below 0": lambda header: header["a"].update(data_offsets=[-8, 0]),
    "decimals": lambda header: header["a"].update(data_offsets=[0.0, 8.0]),
    "yes": lambda header: header["a"].update(data_offsets=[False, 8]),
    "beyond": lambda header: header["b"].update(data_offsets=[8, 2**40]),
    "type": lambda header: header["a"].update(dtype="F33"),
    "integers": lambda header: header["a"].update(dtype="I64"),
    "shape": lambda header: header["a"].update(shape=[3]),
    "negative shape": lambda header: header["a"].update(shape=[-1, -2]),
    "decimal shape": lambda header: header["a"].update(shape=[2.0]),
    "metadata": lambda header: header.update(__metadata__={"a": 1}),
}


@pytest.mark.parametrize("change", FORBIDDEN.values(), ids=FORBIDDEN)
def test_invalid_headers_are_rejected_like_in_safetensors(tmp_path, change):
    entry = {"dtype": "F32", "shape": [2]}
    header = {"a": entry | {"data_offsets": [0, 8]}, "b": entry | {"data_offsets": [8, 16]}}
    path, body = tmp_path / "model.safetensors", np.arange(5, dtype=np.float32).tobytes()

    def store(end):
        encoded = json.dumps(header).encode()
        path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + body[:end])

    swapped(header)  # The order of tensors is irrelevant.
    store(16)
    assert {name: array.tolist() for name, array in read(tmp_path).items()} == {"a": [2, 3], "b": [0, 1]}
    swapped(header)
    change(header)
    store(20 if header["b"]["data_offsets"][1] == 20 else 16)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged \("):
        read(tmp_path)
    with pytest.raises(safetensors.SafetensorError):
        load_file(path)


def test_duplicate_names_are_rejected(tmp_path):
    entry = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = b"{" + entry + b"," + entry + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UserError, match="'a' is repeated in an object"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("shard", "says"),
    [
        ("../elsewhere/model-00001-of-00002.safetensors", "is not the name of a shard in its folder"),
        ("/dev/zero", "is not the name of a shard in its folder"),
        ("model-00002-of-00002.safetensors", "'a' is not in the file that it lists"),
    ],
)
def test_index_with_wrong_paths_is_rejected(tmp_path, shard, says):
    write(tmp_path, {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}, shard_bytes=12)
    assert read(tmp_path).keys() == {"a", "b"}
    (tmp_path.parent / "elsewhere").mkdir(exist_ok=True)
    (tmp_path.parent / "elsewhere/model-00001-of-00002.safetensors").write_bytes(b"")
    index = json.loads((tmp_path / files.INDEX).read_text())
    index["weight_map"]["a"] = shard
    (tmp_path / files.INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match=says):
        read(tmp_path)


def test_tensor_in_two_shards_is_rejected(tmp_path):
    write(tmp_path, {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}, shard_bytes=12)
    both = {"a": np.zeros(3, np.float32), "b": np.ones(3, np.float32)}
    save_file(both, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(UserError, match=r"00002\.safetensors is damaged \(it has 'a', which"):
        read(tmp_path)
