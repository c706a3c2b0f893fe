"""Sources of tokenized documents in `.npy` and `.bin` files, such as those of nanoGPT, llm.c and OLMo."""

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from plm_jax.common import ranges, storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources.corpus import BadRow, Record
from plm_jax.data.sources.files import FileSource, ReadRecord

_EXTENSIONS = (".npy", ".bin")
_NUMPY_MAGIC = b"\x93NUMPY"
# Types of the tokens in llm.c's files, by the first two numbers of their header (`dev/data/data_common.py`).
_LLMC_TYPES = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_LLMC_HEADER_BYTES = 1024
_READ_BYTES = 2**22


class _Tokens(NamedTuple):
    """Type of the tokens in a file, and their position.

    Attributes:
      start: position of the first byte.
      number: number of tokens according to the header; None without a header.
    """

    dtype: np.dtype
    start: int
    number: int | None = None


@dataclass(frozen=True)
class TokenFiles(FileSource):
    """Tokenized documents in `.npy` or `.bin` files: one array of token ids, with a separator between documents.

    The header of a `.npy` file or of llm.c's `.bin` files decides the type of the ids. Other files, such as the files
    of nanoGPT, OLMo and Megatron, have no header. The cache does not contain the separator. A document counts as one
    sentence. The vocabulary must be the one that the documents were tokenized with.

    Attributes:
      path: path of the training files; may be a glob.
      document_end: id that separates documents, at the end or the start of each document, such as 50256 for GPT-2's
        `<|endoftext|>`.
      dtype: type of the ids in files without a header, little-endian; use uint32 for int32.
      validation: path of the validation files; may be a glob; if empty, some of the training documents are held out.
      max_tokens: maximum number of tokens of a document; longer documents are bad rows.
      max_characters: ignored, because the files contain no text; `max_tokens` applies instead.
    """

    kind: ClassVar[str] = "tokens"
    location_fields: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    document_end: Annotated[int, ranges.Range(0, 2**31 - 1)]
    dtype: Literal["uint16", "uint32"] = "uint16"
    validation: str = ""
    max_tokens: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**25, kw_only=True)

    @override
    def check_formats(self, files: Iterable[str]) -> None:
        for path in files:
            if not path.endswith(_EXTENSIONS):
                raise UserError(f"{path}: expected tokens in a .npy or .bin file; for text, use TextFiles or TextTable")

    @override
    def records(self, path: str, advance: Callable[[int], Any]) -> Iterator[tuple[int, ReadRecord]]:
        documents = self._documents(_arrays(path, np.dtype(self.dtype).newbyteorder("<"), advance))
        for number, (size, document) in enumerate(documents, 1):
            if size:
                yield number, functools.partial(_record, f"{path}:document {number}", document, size, self.max_tokens)

    def _documents(self, arrays: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the size and the tokens of each document; a document that is too long is cut."""
        parts: list[np.ndarray] = []
        size = 0
        for array in arrays:
            (ends,) = np.nonzero(array == self.document_end)
            for begin, end in itertools.pairwise([0, *(ends + 1).tolist(), len(array) + 1]):
                part = array[begin : end - 1]
                if size <= self.max_tokens:
                    parts.append(part)
                size += len(part)
                if end <= len(array):
                    yield size, np.concatenate(parts)
                    parts, size = [], 0
        yield size, np.concatenate([np.zeros(0, np.int64), *parts])


def _record(location: str, tokens: np.ndarray, size: int, limit: int) -> Record:
    """Returns the record of a document; equal documents form a group."""
    if size > limit:
        raise BadRow(f"{location} has {size:,} tokens, more than {limit:,}: check document_end, or raise max_tokens")
    group = hashlib.blake2b(tokens.astype("<i8").tobytes(), digest_size=16).hexdigest()
    return Record("", group=group, tokens=tokens)


def _arrays(path: str, dtype: np.dtype, advance: Callable[[int], Any]) -> Iterator[np.ndarray]:
    """Yields the tokens of a file in arrays [n], without reading the whole file at once.

    Args:
      dtype: type of the tokens if the file has no header.

    Raises:
      UserError: the file cannot be read or is damaged, or its array is not a one-dimensional array of integers.
    """
    with _opened(path) as file:
        num_bytes = file.seek(0, os.SEEK_END)
        tokens = _read_header(path, file, dtype)
        available, remainder = divmod(num_bytes - tokens.start, tokens.dtype.itemsize)
        if remainder or available != (available if tokens.number is None else tokens.number):
            number = "a whole number of" if tokens.number is None else f"{tokens.number:,}"
            raise UserError(
                f"{path} is damaged, or dtype is wrong: {num_bytes - tokens.start:,} bytes are not {number} tokens of "
                f"type {tokens.dtype.name}"
            )
        file.seek(tokens.start)
        while data := file.read(_READ_BYTES):
            advance(len(data))
            yield np.frombuffer(data, tokens.dtype)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Opens a file and turns errors of reading it into `UserError`."""
    try:
        with storage.open_binary(path) as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _read_header(path: str, file: BinaryIO, dtype: np.dtype) -> _Tokens:
    """Returns the position and type of the tokens in a file; `dtype` is the type if the file has no header."""
    file.seek(0)
    begin = file.read(_LLMC_HEADER_BYTES)
    file.seek(0)
    if begin.startswith(_NUMPY_MAGIC):
        return _read_numpy_header(path, file)
    if len(begin) == _LLMC_HEADER_BYTES:
        magic, version, number = np.frombuffer(begin, "<i4", 3).tolist()
        if (magic, version) in _LLMC_TYPES:
            return _Tokens(_LLMC_TYPES[magic, version], _LLMC_HEADER_BYTES, number)
    return _Tokens(dtype, 0)


def _read_numpy_header(path: str, file: BinaryIO) -> _Tokens:
    """Returns the position and type of the tokens in a `.npy` file."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise UserError(f"{path} is damaged: its header is not that of a .npy file") from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise UserError(
            f"{path} has an array of shape {shape} and type {dtype}: expected integers in one dimension, one document "
            "after another"
        )
    return _Tokens(dtype, file.tell(), shape[0])
