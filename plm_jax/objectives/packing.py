"""Packed rows: several rows of an objective, the inner rows, joined into one row."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Num

from plm_jax.objectives.rows import padded, segment_positions

Row = dict[str, np.ndarray]

_TOKEN_KEYS = ("tokens", "mask", "token_types", "positions")
_POSITION_KEYS = ("target_positions", "target_left", "target_right")
_TARGET_KEYS = (*_POSITION_KEYS, "targets", "target_weights", "target_offsets")
# Keys of the rows that can be joined.
INNER_KEYS = frozenset((*_TOKEN_KEYS, *_TARGET_KEYS, "pair_label"))


@dataclass(frozen=True)
class PackedFormat:
    """Shapes of packed rows.

    Attributes:
      length: number of tokens.
      num_targets: number of slots for targets.
      num_rows: maximum number of inner rows.
      pad: id of padding.
    """

    length: int
    num_targets: int
    num_rows: int
    pad: int = 0

    def join(self, rows: Sequence[Row]) -> Row:
        """Joins rows that fit into a packed row, one after another, without their padding and unused slots.

        Args:
          rows: rows of an objective with `mask`, `target_weights` and other keys in `INNER_KEYS`, padded at the end. If
            they have more than `num_targets` targets together, the last targets are dropped.

        Returns:
          A row with the same keys and with `segment_ids` and `positions`. Positions of targets are counted from the
          first token of the packed row. `segment_ids` [length] int32 are the number of each token's inner row, counted
          from 1, or 0 at padding. `positions` [length] int32 are the positions of the inner rows or, if inner rows have
          no positions, count from the first token of each inner row. If inner rows have a `pair_label`, the packed row
          has three arrays [num_rows]: `pair_label` int32; `pair_positions` int32, the first token of each inner row;
          and `pair_weights` float32, 1 for an inner row and 0 in unused slots.
        """
        sizes = [int(np.count_nonzero(row["mask"])) for row in rows]
        starts = [0, *itertools.accumulate(sizes[:-1])]
        packed = {"segment_ids": padded(np.repeat(np.arange(1, len(rows) + 1), sizes), sum(sizes), self.length)}
        packed["positions"] = segment_positions(packed["segment_ids"])
        for key in [key for key in _TOKEN_KEYS if key in rows[0]]:
            pieces = [row[key][:size] for row, size in zip(rows, sizes, strict=True)]
            packed[key] = _padded(pieces, self.length, self.pad if key == "tokens" else 0)
        slots = [row["target_weights"] > 0 for row in rows]
        for key in [key for key in _TARGET_KEYS if key in rows[0]]:
            pieces = [row[key][used] for row, used in zip(rows, slots, strict=True)]
            if key in _POSITION_KEYS:
                pieces = [piece + np.int32(start) for piece, start in zip(pieces, starts, strict=True)]
            packed[key] = _padded([np.concatenate(pieces)[: self.num_targets]], self.num_targets)
        if "pair_label" in rows[0]:
            num = len(rows)
            packed["pair_label"] = padded(np.array([row["pair_label"] for row in rows]), num, self.num_rows)
            packed["pair_positions"] = padded(np.array(starts), num, self.num_rows)
            packed["pair_weights"] = padded(1, num, self.num_rows, dtype=np.float32)
        return packed


def split(packed: Row) -> list[Row]:
    """Splits a row of `PackedFormat.join` into its inner rows.

    The inner rows have no padding, no unused slots, no `mask`, and no targets that `join` has dropped. They have no
    `positions` if the positions are 0, 1, 2, and so on.
    """
    rows = []
    used = packed["target_weights"] > 0
    for number in range(int(packed["segment_ids"].max(initial=0))):
        (inside,) = (packed["segment_ids"] == number + 1).nonzero()
        start, stop = int(inside[0]), int(inside[-1]) + 1
        is_target = used & (packed["target_positions"] >= start) & (packed["target_positions"] < stop)
        row = {key: packed[key][start:stop] for key in _TOKEN_KEYS if key in packed and key != "mask"}
        if (row["positions"] == np.arange(stop - start)).all():
            del row["positions"]
        row |= {key: packed[key][is_target] for key in _TARGET_KEYS if key in packed}
        row |= {key: row[key] - start for key in _POSITION_KEYS if key in row}
        rows.append(row | ({"pair_label": packed["pair_label"][number]} if "pair_label" in packed else {}))
    return rows


def _padded(pieces: Sequence[Num[np.ndarray, " _"]], length: int, pad: int = 0) -> Num[np.ndarray, " {length}"]:
    """Returns a row [length]: the concatenated pieces, followed by `pad`."""
    values = np.concatenate(pieces)
    return padded(values, len(values), length, pad, values.dtype.type)
