"""Validation of SentencePiece model files. The library crashes on some invalid files and misreads others."""

import math
import re
from typing import Any

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protocol

# The largest published model has 18 MB and a million pieces.
MOST_BYTES = 2**25
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def parse(data: bytes) -> Any:
    """Returns the protocol buffer of a model file.

    Raises:
      ValueError: the file is too large, is not a complete model, or cannot be read safely by SentencePiece.
    """
    # Each piece has at least two line feeds: the tags of its field and of its text.
    if len(data) > MOST_BYTES or data.count(b"\n") > 2**22:
        raise ValueError(f"{len(data):,} bytes: the limits are {MOST_BYTES:,} bytes and about two million pieces")
    try:
        model = protocol.ModelProto.FromString(data)  # pyright: ignore[reportAttributeAccessIssue]
        texts = [piece.piece for piece in model.pieces]
    except Exception as error:  # The library raises several types of its own.
        raise ValueError("it is not the protocol buffer of a model") from error
    if not all(texts) or len(set(texts)) < len(texts) or not texts:
        raise ValueError("it has no pieces, an empty piece or a repeated piece")
    for piece in model.pieces:
        if not math.isfinite(piece.score):
            raise ValueError(f"the piece {piece.piece[:100]!r} has the score {piece.score}")
        if piece.type == piece.BYTE and not _BYTE.fullmatch(piece.piece):
            raise ValueError(f"the piece {piece.piece[:100]!r} is not a byte such as <0x0A>")
    if sum(piece.type == piece.UNKNOWN for piece in model.pieces) != 1:
        raise ValueError("it does not have exactly one unknown piece")
    for spec in (model.normalizer_spec, model.denormalizer_spec):
        check_rules(spec.precompiled_charsmap)
    return model


def processor(data: bytes) -> Any:
    """Returns the `SentencePieceProcessor` of a model file. Only files that `parse` accepts are safe to pass.

    Raises:
      ValueError: the library rejects the file.
    """
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)  # pyright: ignore[reportCallIssue]
    except Exception as error:
        raise ValueError("SentencePiece rejects it") from error


def check_rules(rules: bytes) -> None:
    """Checks that a library can apply the rules of a normalizer without reading beyond the end of the rules.

    The rules consist of a trie and replacement texts. The values of the trie are offsets into the texts. The trie is a
    double array (https://github.com/s-yata/darts-clone): the child of unit i for byte c is unit i ^ offset(i) ^ c. The
    library reads this unit whether or not the child exists. Empty rules are accepted.

    Raises:
      ValueError: the rules are truncated, or an offset points outside the trie or the texts.
    """
    if not rules:
        return
    size = int.from_bytes(rules[:4], "little")
    texts = len(rules) - 4 - size
    if len(rules) <= 4 or size % 4 or size < 1024 or texts <= 0 or rules[-1]:
        raise ValueError("its normalizer is truncated")
    units = np.frombuffer(rules, "<u4", size // 4, 4).astype(np.int64)
    labels, offsets = units & (2**31 | 0xFF), units >> 10 << ((units & 2**9) >> 6)
    visited, nodes = np.zeros(len(units), np.bool_), np.zeros(1, np.int64)
    while len(nodes):
        visited[nodes] = True
        first = nodes ^ offsets[nodes]
        if (first | 0xFF).max() >= len(units):
            raise ValueError("its normalizer has an offset outside of its trie")
        values = units[first[(units[nodes] >> 8 & 1).astype(np.bool_)]] & (2**31 - 1)
        if (values >= texts).any():
            raise ValueError("its normalizer has an offset outside of its texts")
        children = first[:, None] ^ np.arange(1, 256)
        nodes = np.unique(children[labels[children] == np.arange(1, 256)])
        nodes = nodes[~visited[nodes]]
