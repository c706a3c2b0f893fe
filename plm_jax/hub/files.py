"""Files of a model directory, which may be local or in a bucket: JSON files, vocabulary files and safetensors.

A safetensors file consists of the length of its header (8 bytes, little-endian), the header (JSON: type, shape and byte
offsets of each tensor) and the bytes of the tensors, without gaps. The weights of a model are either one such file, or
an index and the files that it lists. The index maps tensor names to file names
(https://github.com/huggingface/safetensors). Files that violate the format are rejected. Tensors are read and written
one at a time.
"""

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from plm_jax.common import storage, strict_json
from plm_jax.common.errors import UserError, one_line

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
UNPICKLE = (
    f"in that folder, convert it to {WEIGHTS} with "
    'python -c "import glob, torch; from safetensors.torch import save_file; '
    "save_file({k: v.contiguous().clone() for f in glob.glob('pytorch_model*.bin') "
    f"for k, v in torch.load(f, weights_only=True).items()}}, '{WEIGHTS}')\""
)
SHARD_BYTES = 5 * 10**9
# A hundred times the number of tensors of any supported model.
MAX_TENSORS = 100_000

# Types of weights, by their names in a header. Files may contain other types, but not as weights of a model.
FLOATS = {"F64": np.dtype("float64"), "F32": np.dtype("float32"), "F16": np.dtype("float16")}
FLOATS["BF16"] = np.dtype(jnp.bfloat16)
# Number of bits of each type.
_BITS = {name: 8 * dtype.itemsize for name, dtype in FLOATS.items()}
_BITS |= {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "C64": 64}
_BITS |= {"F8_E5M2": 8, "F8_E4M3": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "F8_E8M0": 8}
_BITS |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


class LazyArray:
    """Array that is read from files when it is indexed.

    The index `...` reads the whole array. An integer reads one slice along the first axis.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        raise NotImplementedError

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self[...], dtype)

    def parts(self) -> Iterator[np.ndarray]:
        """Iterates over the content in C order.

        An array with more than two axes is read in slices along the first axis. Other arrays are read as a whole.
        """
        return (self[i] for i in range(self.shape[0])) if len(self.shape) > 2 else iter([self[...]])


class StoredTensor(LazyArray):
    """Tensor in an open safetensors file. If it is indexed with a slice, only the rows in the slice are read.

    Negative integers as indices, and slices with a step, are not supported.

    Attributes:
      name: name of the tensor in the file.
      code: name of the tensor's type in the file, such as `F32`. `dtype` is defined only if the code is in FLOATS.
    """

    def __init__(self, file: BinaryIO, path: str, name: str, code: str, shape: tuple[int, ...], begin: int):
        self._file, self._path, self._begin = file, path, begin
        self.name, self.code, self.shape = name, code, shape

    @property
    def dtype(self) -> np.dtype:
        """NumPy type of the elements."""
        return FLOATS[self.code]

    def __getitem__(self, index: Any) -> np.ndarray:
        if index is Ellipsis or index is None:  # None adds an axis, as in NumPy.
            return self._read(0, self.shape)[index]
        if isinstance(index, slice):
            first, end, _ = index.indices(self.shape[0])
            return self._read(first, (max(0, end - first), *self.shape[1:]))
        return self._read(index, self.shape[1:])

    def _read(self, row: int, shape: tuple[int, ...]) -> np.ndarray:
        data = bytearray(math.prod(shape) * self.dtype.itemsize)
        with storage.reaching(self._path):
            self._file.seek(self._begin + row * math.prod(self.shape[1:]) * self.dtype.itemsize)
            # Missing from `BinaryIO`, but present in every file object of Python and fsspec.
            read = self._file.readinto(data)  # pyright: ignore[reportAttributeAccessIssue]
        if read != len(data):
            raise _damaged(self._path, f"it ends within {self.name}")
        return np.frombuffer(data, self.dtype).reshape(shape)

    def equals(self, other: "StoredTensor") -> bool:
        """Whether both tensors have types in FLOATS, the same shape and equal elements.

        Only a few rows are in memory at a time.
        """
        if self.shape != other.shape or not {self.code, other.code} <= FLOATS.keys():
            return False
        if not self.shape:
            return bool(self[...] == other[...])
        rows = max(1, 2**22 // max(1, math.prod(self.shape[1:])))
        pieces = (slice(first, first + rows) for first in range(0, self.shape[0], rows))
        return all(np.array_equal(self[piece], other[piece]) for piece in pieces)


class Content(NamedTuple):
    """Content of a tensor to write.

    Attributes:
      shape: shape of the tensor.
      dtype: type of the elements.
      parts: function that returns the elements in C order, as one array or as several arrays in sequence.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: Callable[[], Iterable[np.ndarray]]

    @classmethod
    def of(cls, array: Any) -> "Content":
        """Returns the content of an array, which may be a `LazyArray`."""
        return cls(array.shape, array.dtype, array.parts if isinstance(array, LazyArray) else lambda: [array])


def common_type(arrays: Iterable[Any]) -> np.dtype:
    """Returns the smallest type that can represent the elements of all arrays."""
    return functools.reduce(np.promote_types, {array.dtype for array in arrays})


@contextlib.contextmanager
def opened(folder: str) -> Iterator[dict[str, StoredTensor]]:
    """Context manager that yields a dict from names to the tensors of a model.

    The tensors can be read until the context exits.

    Raises:
      UserError: a file is missing or damaged, there are too many tensors, a tensor is not in the file that the index
        names, or the weights are a pickle.
    """
    shards, names = _shards(folder)
    with contextlib.ExitStack() as stack:
        tensors: dict[str, StoredTensor] = {}
        for shard in shards:
            path = os.path.join(folder, shard)
            of_shard = _open(path, stack)
            misplaced = [name for name in of_shard if names.get(name, shard) != shard or name in tensors]
            if misplaced:
                raise _damaged(path, f"it has {misplaced[0][:200]!r}, which {INDEX} says is in another file")
            tensors |= of_shard
            if len(tensors) > MAX_TENSORS:
                raise _damaged(path, f"it and the shards before it have more than {MAX_TENSORS:,} tensors")
        if missing := names.keys() - tensors.keys():
            raise _damaged(os.path.join(folder, INDEX), f"{min(missing)[:200]!r} is not in the file that it lists")
        yield tensors


def _shards(folder: str) -> tuple[list[str], dict[str, str]]:
    """Returns a pair: the names of the weight files, and a dict from tensor names to file names.

    The dict comes from the index. It is empty if the folder contains `model.safetensors`, which is then the only file.
    """
    if storage.exists(os.path.join(folder, WEIGHTS)):
        return [WEIGHTS], {}
    index = os.path.join(folder, INDEX)
    if not storage.exists(index):
        if any(storage.exists(os.path.join(folder, name)) for name in PICKLES):
            raise UserError(f"{folder} contains a pickle file, which could run any code, so it is not read: {UNPICKLE}")
        raise UserError(f"{folder} has neither {WEIGHTS} nor {INDEX}: save the weights as safetensors")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{index} is damaged: it has no weight_map; fetch it again")
    shards = sorted(set(names.values()))
    for shard in shards:
        if not re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII) or shard.startswith("."):
            raise _damaged(index, f"{shard[:200]!r} is not the name of a shard in its folder")
        if not storage.exists(os.path.join(folder, shard)):
            raise UserError(f"{folder}/{shard[:200]} is missing, though {INDEX} lists it: fetch it again")
    return shards, names


def _open(path: str, stack: contextlib.ExitStack) -> dict[str, StoredTensor]:
    try:
        file = stack.enter_context(storage.open_binary(path))
        with storage.reaching(path):
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if 8 + length > size:
                raise ValueError("it has no safetensors header")
            if length > strict_json.MOST_BYTES:
                raise ValueError(f"a header of {length:,} bytes, at most {strict_json.MOST_BYTES:,} are read")
            header = file.read(length)
        if header.count(b"data_offsets") > MAX_TENSORS:  # Checked before the header is parsed.
            raise ValueError(f"more than {MAX_TENSORS:,} tensors")
        return _tensors(file, path, strict_json.loads(header), 8 + length, size)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise _damaged(path, one_line(error)) from error


def _tensors(file: BinaryIO, path: str, header: Any, begin: int, size: int) -> dict[str, StoredTensor]:
    """Returns a dict from names to the tensors that a parsed header describes.

    Raises:
      ValueError: the header violates the format. For example, the tensors do not cover each byte from `begin` to the
        end of the file exactly once.
    """
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ maps names to values that are not strings")
    stored, end = {}, begin
    spans = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name[:200]!r} has fields other than dtype, shape and data_offsets")
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(code, str) or code not in _BITS:
            raise ValueError(f"{name[:200]!r} has the type {str(code)[:200]!r}")
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"{name[:200]!r} has a shape or data_offsets that are not lists of sizes")
        if math.prod(shape) * _BITS[code] != 8 * (offsets[1] - offsets[0]):
            raise ValueError(
                f"{name[:200]!r} has {offsets[1] - offsets[0]} bytes, which does not fit its type and shape"
            )
        stored[name] = StoredTensor(file, path, name, code, tuple(shape), begin + offsets[0])
        spans.append((begin + offsets[0], begin + offsets[1], name))
    for first, last, name in sorted(spans):
        if first != end:
            raise ValueError(
                f"{name[:200]!r} begins at byte {first:,} and not at {end:,}, where the one before it ends"
            )
        end = last
    if end != size:
        raise ValueError(f"{size:,} bytes and not {end:,}")
    return stored


def _are_sizes(value: Any) -> bool:
    """Whether a value is a list of at most 32 integers from 0 to 2 ** 63 - 1."""
    return isinstance(value, list) and len(value) <= 32 and all(type(i) is int and 0 <= i < 2**63 for i in value)


def _damaged(path: str, cause: str) -> UserError:
    return UserError(f"{path} is damaged ({cause}): fetch it again")


def unreadable(path: str, error: OSError) -> UserError:
    """Returns the error for a file that cannot be opened or read."""
    return UserError(f"cannot read {path} ({error.strerror}): make it readable or pass another file")


def write(folder: str | os.PathLike[str], tensors: Mapping[str, Content], shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the tensors to one file, or to several shards of at most `shard_bytes` each and an index.

    A tensor larger than `shard_bytes` gets its own shard. Other weight files in the folder are removed.
    """
    shards = _divide(tensors, shard_bytes)
    names = [f"model-{number + 1:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))]
    names = [WEIGHTS] if len(shards) == 1 else names
    for name, shard in zip(names, shards, strict=True):
        _write_file(os.path.join(folder, name), {tensor: tensors[tensor] for tensor in shard})
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(map(_num_bytes, tensors.values()))
        write_json(os.path.join(folder, INDEX), {"metadata": {"total_size": total}, "weight_map": weight_map})
        names.append(INDEX)
    for name in storage.names(os.fspath(folder)):
        if re.fullmatch(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?", name) and name not in names:
            storage.remove(os.path.join(folder, name))


def _num_bytes(content: Content) -> int:
    return math.prod(content.shape) * content.dtype.itemsize


def _divide(tensors: Mapping[str, Content], shard_bytes: int) -> list[list[str]]:
    """Divides the tensors among shards. Returns a list of tensor names for each shard."""
    shards, free = [[]], shard_bytes
    for name, content in tensors.items():
        size = _num_bytes(content)
        if shards[-1] and size > free:
            shards.append([])
            free = shard_bytes
        shards[-1].append(name)
        free -= size
    return shards


def _write_file(path: str, tensors: Mapping[str, Content]) -> None:
    # Wide types first: each tensor then begins at a multiple of its type's size, as memory-mapped reading requires.
    names = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    codes = {dtype: code for code, dtype in FLOATS.items()}
    header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        content = tensors[name]
        first, end = end, end + _num_bytes(content)
        header[name] = {"dtype": codes[content.dtype], "shape": content.shape, "data_offsets": (first, end)}
    encoded = json.dumps(header, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)
    with storage.writing(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in names:
            for part in tensors[name].parts():
                file.write(np.ascontiguousarray(part, tensors[name].dtype).reshape(-1).view(np.uint8).data)


def refuse_misfits(summary: str, misfits: Mapping[str, Iterable[str]]) -> None:
    """Raises a `UserError` if there are any misfits.

    Args:
      summary: beginning of the message.
      misfits: mapping from a description of a problem to the names of the tensors that have this problem.
    """
    problems = [
        f"{sort}: {', '.join(n[:200] for n in names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for sort, names in ((sort, sorted(names)) for sort, names in misfits.items())
        if names
    ]
    if problems:
        raise UserError(f"{summary}: {'; '.join(problems)}")


def write_json(path: str, tree: Mapping[str, Any] | list[Any]) -> None:
    """Writes a JSON object or list to a file, with indentation."""
    storage.write(path, (json.dumps(tree, indent=2) + "\n").encode("utf-8"))


def read_json(path: str) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
      UserError: the file is missing, cannot be read or does not contain a JSON object.
    """
    try:
        tree = strict_json.read(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: every model directory has one") from None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise _damaged(path, one_line(error)) from error
    if not isinstance(tree, dict):
        raise _damaged(path, "it is not a JSON object")
    return tree


def contents(vocabulary: str) -> dict[str, bytes]:
    """Reads the files that a vocabulary spec, `KIND:FILE,FILE,…`, lists.

    Returns:
      A dict from file names to the contents of the files, in the order of the spec.

    Raises:
      UserError: a file is missing, cannot be read or is too large for a vocabulary file.
    """
    data = {}
    for path in filter(None, vocabulary.partition(":")[2].split(",")):
        try:
            data[os.path.basename(path)] = storage.read(path, strict_json.MOST_BYTES)
        except FileNotFoundError:
            raise UserError(f"{path} is missing: copy the model's vocabulary there") from None
        except OSError as error:
            raise unreadable(path, error) from error
    return data
