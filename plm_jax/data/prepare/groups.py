"""Groups of rows that are held out together, and the rows that training and validation share.

The source may declare the group of each row, such as a document's id. Otherwise, rows with the same first text form a
group. The first text is the context of a question, the premise of a pair, or the inputs of an example. Groups are
compared after Unicode NFC normalization with white space collapsed.

If a source has no validation split, the groups whose 64-bit hash is below `data.validation_fraction` * 2^64 are held
out. If these groups have fewer than MIN_ROWS rows in total, more groups are added in the order of their hashes
until MIN_ROWS rows are held out, or until the next group would raise the held-out rows above 1 / MAX_SHARE of all rows.
If all rows belong to a single group, or if the fraction is 0, no row is held out. Otherwise, at least one group is held
out, whatever its size. The split is thus a single bound on the hash. It depends only on the rows and the fraction, not
on the order of the rows, the number of workers or the engine.
"""

import hashlib
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

MIN_ROWS = 20
MAX_SHARE = 10
# Levels of comparison of rows: all texts unchanged, all texts normalized, groups.
LEVELS = ("exact", "normalized", "group")
# Record of a row: its hash at each level, and whether it is in the source's own validation split.
KEYS = np.dtype([*((level, "<u8") for level in LEVELS), ("validates", "?")])
_BLOCK_ROWS = 2**17
# Number of validation rows whose hashes are in memory at once.
_PART_ROWS = 2**21


def normalize(text: str) -> str:
    """Returns a text in Unicode NFC, stripped and with runs of white space replaced by one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def key(text: str) -> int:
    """Returns the 64-bit hash of a group, after `normalize`."""
    return _hash(normalize(text))


def keys(
    texts: Sequence[str],
    further_texts: Sequence[tuple[str, ...]] | None,
    groups: Sequence[str | None],
    validates: Sequence[bool],
) -> np.ndarray:
    """Returns an array [rows] of dtype KEYS.

    An element has `validates` and three hashes of a row: of its texts, of its normalized texts, and of its group.

    Args:
      texts: first text of each row.
      further_texts: texts of each row after the first; None if rows are documents, which have one text.
      groups: group of each row; None stands for the row's first text.
      validates: whether each row is in the source's own validation split.
    """
    hashes = []
    for text, rest, group in zip(texts, further_texts or [()] * len(texts), groups, strict=True):
        normalized = normalize(text)
        of_group = normalized if group is None else normalize(group)
        hashes.append((_hash(text, *rest), _hash(normalized, *map(normalize, rest)), _hash(of_group)))
    rows = np.zeros(len(texts), KEYS)
    rows["validates"] = validates
    for level, column in zip(LEVELS, zip(*hashes, strict=True), strict=True):
        rows[level] = column
    return rows


def _hash(text: str, *further_texts: str) -> int:
    """Returns a 64-bit hash of texts. With several texts, it also covers their lengths."""
    parts = [part.encode("utf-8") for part in (text, *further_texts)]
    lengths = b"".join(len(part).to_bytes(8, "little") for part in parts) if further_texts else b""
    return int.from_bytes(hashlib.blake2b(lengths + b"".join(parts), digest_size=8).digest(), "big")


class HeldOutRule(NamedTuple):
    """Rule that chooses the held-out rows.

    Attributes:
      name: `source` for the source's own validation split, `hash` for the bound that the fraction sets, `top-up` for a
        higher bound because the fraction holds out fewer than MIN_ROWS rows, `none` if nothing is held out.
      bound: groups with a hash below this bound are held out; 0 for `source` and `none`.
    """

    name: str
    bound: int = 0


@dataclass
class Groups:
    """Row counts that decide which groups are held out. Counts of several parts of a source can be added.

    Attributes:
      rows: number of rows.
      smallest: number of rows of each of the MIN_ROWS groups with the smallest hashes, by hash. More groups are not
        needed, because each group has at least one row.
    """

    rows: int = 0
    smallest: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, hashes: Sequence[int] | np.ndarray) -> "Groups":
        """Returns the counts of some rows.

        Args:
          hashes: for each row, the hash of its group.
        """
        smallest, counts = np.unique(np.asarray(hashes, np.uint64), return_counts=True)
        first = zip(smallest[:MIN_ROWS].tolist(), counts[:MIN_ROWS].tolist(), strict=True)
        return cls(int(counts.sum()), dict(first))

    def add(self, more: "Groups") -> None:
        """Adds the counts of another part of the source."""
        hashes = sorted(self.smallest.keys() | more.smallest.keys())[:MIN_ROWS]
        self.smallest = {group: self.smallest.get(group, 0) + more.smallest.get(group, 0) for group in hashes}
        self.rows += more.rows

    def _rows_below(self, threshold: int) -> int:
        """Returns the number of rows in groups with a hash below the threshold; exact only if less than MIN_ROWS."""
        return sum(number for group, number in self.smallest.items() if group < threshold)

    def is_settled(self, fraction: float) -> bool:
        """Whether `rule` will return the same, whatever rows are added."""
        return fraction == 0 or (len(self.smallest) > 1 and self._rows_below(_threshold(fraction)) >= MIN_ROWS)

    def rule(self, fraction: float) -> HeldOutRule:
        """Returns the rule for these rows; with fewer than two groups or a fraction of 0, nothing is held out."""
        if fraction == 0 or len(self.smallest) < 2:
            return HeldOutRule("none")
        threshold = bound = _threshold(fraction)
        rows = self._rows_below(threshold)
        for group in sorted(group for group in self.smallest if group >= threshold):
            rows_with_it = rows + self.smallest[group]
            if rows >= MIN_ROWS or (rows and MAX_SHARE * rows_with_it > self.rows):
                break
            rows, bound = rows_with_it, group + 1
        return HeldOutRule("hash" if bound == threshold else "top-up", bound)


def _threshold(fraction: float) -> int:
    """Returns the bound below which a fraction of all 64-bit hashes lies."""
    return math.ceil(fraction * 2**64)


def are_held_out(rows: np.ndarray, rule: HeldOutRule) -> np.ndarray:
    """Returns whether each row is held out. `rows` is a structured array with the fields `group` and `validates`."""
    if rule.bound == 0:
        return rows["validates"]
    return rows["group"] <= np.uint64(rule.bound - 1)  # A bound of 2^64 does not fit in uint64.


class Overlap(NamedTuple):
    """Numbers of held-out rows and of rows in both splits.

    Attributes:
      validation: number of held-out rows.
      shared: `shared[level][split]` is the number of rows of a split that equal a row of the other split. The levels
        are `exact` (equal texts), `normalized` (equal texts after `normalize`) and `group` (equal groups).
    """

    validation: int
    shared: dict[str, dict[str, int]]


def overlap(path: str, rule: HeldOutRule) -> Overlap:
    """Returns the numbers of held-out rows and of rows in both splits, from a local file of KEYS records.

    Memory does not grow with the size of the file.
    """
    num_validation = sum(int(is_validation.sum()) for _, is_validation in _blocks(path, rule))
    shared = {level: {"train": 0, "validation": 0} for level in LEVELS}
    num_parts = -(-num_validation // _PART_ROWS)
    for part in range(num_parts):
        _add_shared(path, rule, part, num_parts, shared)
    return Overlap(num_validation, shared)


def _add_shared(path: str, rule: HeldOutRule, part: int, num_parts: int, shared: dict[str, dict[str, int]]) -> None:
    """Adds to `shared` (`Overlap.shared`) the numbers of shared rows whose hash modulo `num_parts` is `part`."""

    def hashes(level: str, rows: np.ndarray, is_in_split: np.ndarray) -> np.ndarray:
        of_split = rows[level][is_in_split]
        return of_split[of_split % np.uint64(num_parts) == part]

    blocks: dict[str, list[np.ndarray]] = {level: [] for level in LEVELS}
    for rows, is_validation in _blocks(path, rule):
        for level in LEVELS:
            blocks[level].append(hashes(level, rows, is_validation))
    validation = {level: np.unique(np.concatenate(blocks.pop(level)), return_counts=True) for level in LEVELS}
    is_shared = {level: np.zeros(len(unique), np.bool_) for level, (unique, _) in validation.items()}
    for rows, is_validation in _blocks(path, rule):
        for level, (unique, _) in validation.items():
            of_train = hashes(level, rows, ~is_validation)
            index = np.searchsorted(unique, of_train)
            in_both = index < len(unique)
            in_both[in_both] = unique[index[in_both]] == of_train[in_both]
            shared[level]["train"] += int(in_both.sum())
            is_shared[level][index[in_both]] = True
    for level, (_, counts) in validation.items():
        shared[level]["validation"] += int(counts[is_shared[level]].sum())


def _blocks(path: str, rule: HeldOutRule) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields a pair per block of a file of dtype KEYS: the block's rows, and whether each row is held out."""
    with open(path, "rb") as file:
        while len(rows := np.fromfile(file, KEYS, _BLOCK_ROWS)):
            yield rows, are_held_out(rows, rule)
