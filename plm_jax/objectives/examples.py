"""Rows of examples with inputs and targets, with the same keys as the rows of an objective."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Integer
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.rows import segment_positions
from plm_jax.objectives.special import Special

Tokens = Sequence[int] | Integer[np.ndarray, " _"]
Example = tuple[Tokens, Tokens]
Counts = Integer[np.ndarray, " examples"]


@dataclass(frozen=True)
class ExampleRows:
    """The base of classes that make rows of examples with inputs and targets.

    Attributes:
      objective: objective whose rows have the same keys and shapes.
      target_length: maximum number of target tokens, special tokens included. For an encoder-decoder, it is also the
        length of the decoder's row, and None means the objective's length of this row. For a decoder, it must be set.
      segmented: whether rows have segment ids, so that several examples can share a row.
      begin: special ids before the inputs in a decoder's row; the layout puts the same ids before a document.
    """

    objective: Objective
    special: Special
    target_length: int | None = None
    segmented: bool = False
    begin: Sequence[int] = ()

    def lengths(self, length: int) -> tuple[int, int]:
        """Returns a pair: the length of the row of inputs, and the length of the row of targets."""
        raise NotImplementedError

    def sizes(self, num_inputs: Counts, num_targets: Counts, length: int) -> tuple[Counts, Counts]:
        """Returns two arrays: the number of tokens of each example in the row of inputs, and in the row of targets.

        Args:
          num_inputs, num_targets: [n], numbers of input tokens and of target tokens of each example, before truncation
            and without special tokens.
        """
        raise NotImplementedError

    def are_truncated(self, num_inputs: Counts, num_targets: Counts, length: int) -> Bool[np.ndarray, " examples"]:
        """Returns whether the inputs or the targets of each example are truncated, bool [n]."""
        raise NotImplementedError

    def prompt(self, inputs: Tokens, length: int) -> list[int]:
        """Returns the ids, including special tokens, that a model reads for `inputs` in a row of `length`."""
        raise NotImplementedError

    def row(self, examples: Sequence[Example], length: int) -> dict[str, np.ndarray]:
        """Packs examples into a row, one after another; they must fit according to `sizes`."""
        raise NotImplementedError

    def align(self, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Pads an objective's row of plain text and adds missing keys, to match the rows that `row` returns."""
        raise NotImplementedError


@dataclass(frozen=True)
class EncoderDecoderRows(ExampleRows):
    """Rows with inputs in the encoder and targets in the decoder; eos follows both (Raffel et al. 2020 §2.4).

    With a denoising objective, inputs and targets also begin with bos, and the decoder's input begins with eos, as in
    BART. Long texts are truncated at the end, before eos, like T5's `append_eos_after_trim`.
    """

    def __post_init__(self):
        if self.special.eos is None or (self._framed and self.special.bos is None):
            raise UserError(
                "examples end with eos and, with denoising, begin with bos: set config.vocabulary.eos and bos"
            )

    @property
    def _framed(self) -> bool:
        return self.objective.frames

    @property
    def _num_special(self) -> int:
        """Number of special tokens around each text."""
        return 2 if self._framed else 1

    @override
    def lengths(self, length: int) -> tuple[int, int]:
        return self.objective.row_length(length), self.target_length or self.objective.target_length(length)

    @override
    def sizes(self, num_inputs: Counts, num_targets: Counts, length: int) -> tuple[Counts, Counts]:
        of_inputs, of_targets = self.lengths(length)
        extra = self._num_special
        return np.minimum(num_inputs + extra, of_inputs), np.minimum(num_targets + extra, of_targets)

    @override
    def are_truncated(self, num_inputs: Counts, num_targets: Counts, length: int) -> Bool[np.ndarray, " examples"]:
        of_inputs, of_targets = self.lengths(length)
        return (num_inputs > of_inputs - self._num_special) | (num_targets > of_targets - self._num_special)

    @override
    def prompt(self, inputs: Tokens, length: int) -> list[int]:
        begin = [self.special.required("bos")] if self._framed else []
        return [*begin, *inputs[: length - self._num_special], self.special.required("eos")]

    @override
    def row(self, examples: Sequence[Example], length: int) -> dict[str, np.ndarray]:
        """Packs examples into a row, one after another; they must fit according to `sizes`.

        Returns:
          `tokens` and `mask` [length] int32; `decoder_tokens` and `targets` [target_length] int32; `target_weights`
          [target_length] float32. In each example, `decoder_tokens` are the targets shifted right by one, and begin
          with pad or, with a denoising objective, eos. If `segmented`, the row also has `segment_ids` and
          `decoder_segment_ids`, the number of each token's example, counted from 1, or 0 at padding; and
          `decoder_positions`, which count from the first token of each example.
        """
        pad, limits = self.special.pad or 0, self.lengths(length)
        (tokens, segment_ids), (targets, decoder_segment_ids) = (
            _joined([self.prompt(part, limit) for part in parts], limit, pad)
            for parts, limit in zip(zip(*examples, strict=True), limits, strict=True)
        )
        decoder_tokens = np.empty_like(targets)
        decoder_tokens[1:] = targets[:-1]
        positions = segment_positions(decoder_segment_ids)
        decoder_tokens[(positions == 0) & (decoder_segment_ids > 0)] = (
            self.special.required("eos") if self._framed else pad
        )
        arrays = {
            "tokens": tokens,
            "mask": (segment_ids > 0).astype(np.int32),
            "decoder_tokens": decoder_tokens,
            "targets": targets,
            "target_weights": (decoder_segment_ids > 0).astype(np.float32),
        }
        if self.segmented:
            arrays |= {"segment_ids": segment_ids, "decoder_segment_ids": decoder_segment_ids}
            arrays["decoder_positions"] = positions
        return arrays

    @override
    def align(self, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        num = len(row["targets"])
        if self.target_length is not None:
            padding, pad = (0, self.target_length - num), self.special.pad or 0
            row = row | {key: np.pad(row[key], padding, constant_values=pad) for key in ("decoder_tokens", "targets")}
            rest = row.keys() & {"target_weights", "decoder_segment_ids", "decoder_positions"}
            row |= {key: np.pad(row[key], padding) for key in rest}
        if self.segmented and "segment_ids" not in row:
            row = row | {"segment_ids": row["mask"]}
            row["decoder_segment_ids"] = (np.arange(len(row["targets"])) < num).astype(np.int32)
            row["decoder_positions"] = np.arange(len(row["targets"]), dtype=np.int32)
        return row


@dataclass(frozen=True)
class DecoderRows(ExampleRows):
    """Rows in which a decoder reads the inputs and predicts the targets and eos.

    With a prefix LM, attention within the inputs is bidirectional. If `begin` and the inputs are empty, the decoder
    reads eos instead. Inputs are truncated to the room that `target_length` leaves in a row, even if the targets are
    shorter. Prompts at inference are therefore the same as in training.
    """

    def __post_init__(self):
        if self.special.eos is None:
            raise UserError("examples end with eos: set config.vocabulary.eos")

    @property
    def _num_targets(self) -> int:
        """Maximum number of target tokens, eos included. Raises a `UserError` if `target_length` is None."""
        if self.target_length is None:
            raise UserError(
                "a decoder's row is shared by inputs and targets: set config.data.inputs_targets.target_length"
            )
        return self.target_length

    @override
    def lengths(self, length: int) -> tuple[int, int]:
        """Returns the length of the row twice, because inputs and targets share the row."""
        return length, length

    @override
    def sizes(self, num_inputs: Counts, num_targets: Counts, length: int) -> tuple[Counts, Counts]:
        """Returns the same array twice: the number of tokens of each example in the shared row."""
        inputs = np.clip(num_inputs + len(self.begin), 1, length + 1 - self._num_targets)
        size = inputs + np.minimum(num_targets, self._num_targets - 1)
        return size, size

    @override
    def are_truncated(self, num_inputs: Counts, num_targets: Counts, length: int) -> Bool[np.ndarray, " examples"]:
        room = length + 1 - self._num_targets - len(self.begin)
        return (num_inputs > room) | (num_targets >= self._num_targets)

    @override
    def prompt(self, inputs: Tokens, length: int) -> list[int]:
        return [*self.begin, *inputs][: length + 1 - self._num_targets] or [self.special.required("eos")]

    @override
    def row(self, examples: Sequence[Example], length: int) -> dict[str, np.ndarray]:
        """Packs examples into a row, each as inputs and targets; the examples must fit according to `sizes`.

        Returns:
          `tokens` and `targets` [length] int32; `target_weights` [length] float32, 1 at targets and eos; for a prefix
          LM also `prefix_lengths` [] int32, the number of tokens that the decoder reads before the targets of the first
          example. If `segmented`, the row also has `segment_ids`, the number of each token's example, counted from 1,
          or 0 at padding; and `positions`, which count from the first token of each example.
        """
        prompts = [self.prompt(inputs, length) for inputs, _ in examples]
        answers = [[*targets[: self._num_targets - 1], self.special.required("eos")] for _, targets in examples]
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        pad = self.special.pad or 0
        tokens, segment_ids = _joined([text[:-1] for text in whole], length, pad)
        targets, _ = _joined([text[1:] for text in whole], length, pad)
        is_answer = [[0] * (len(prompt) - 1) + [1] * len(rest) for prompt, rest in zip(prompts, answers, strict=True)]
        arrays = {"tokens": tokens, "targets": targets, "target_weights": _joined(is_answer, length, 0)[0]}
        arrays["target_weights"] = arrays["target_weights"].astype(np.float32)
        if self.segmented:
            arrays |= {"segment_ids": segment_ids, "positions": segment_positions(segment_ids)}
        if self.objective.has_prefix:
            arrays["prefix_lengths"] = np.array(len(prompts[0]), np.int32)
        return arrays

    @override
    def align(self, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not self.segmented or "segment_ids" in row:
            return row
        num = len(row["tokens"])
        return row | {"segment_ids": np.ones(num, np.int32), "positions": np.arange(num, dtype=np.int32)}


def _joined(
    parts: Sequence[Sequence[int]], length: int, pad: int
) -> tuple[Int[np.ndarray, " {length}"], Int[np.ndarray, " {length}"]]:
    """Returns a row [length] int32 of concatenated parts, and the number of each token's part (0 at padding)."""
    sizes = [len(part) for part in parts]
    row, numbers = np.full(length, pad, np.int32), np.zeros(length, np.int32)
    row[: sum(sizes)] = np.concatenate([np.asarray(part, np.int32) for part in parts])
    numbers[: sum(sizes)] = np.repeat(np.arange(1, len(parts) + 1), sizes)
    return row, numbers
