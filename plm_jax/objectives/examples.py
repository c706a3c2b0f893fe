"""Rows of examples that bring inputs and targets of their own, with the keys of the rows that an objective makes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Integer
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.rows import places
from plm_jax.objectives.special import Special

Tokens = Sequence[int] | Integer[np.ndarray, " _"]
Example = tuple[Tokens, Tokens]
Counts = Integer[np.ndarray, " examples"]


@dataclass(frozen=True)
class ExampleRows:
    """The base of rows of examples, each inputs and targets.

    Attributes:
      objective: the one whose rows are of the same shape.
      target_length: most tokens of the targets, their end counted; in an encoder-decoder the length of the decoder's
        row, and None is as the objective makes it.
      segmented: whether rows say which example each token is of, so that several can share a row.
      begin: what begins a decoder's texts, and so its inputs.
    """

    objective: Objective
    special: Special
    target_length: int | None = None
    segmented: bool = False
    begin: Sequence[int] = ()

    def lengths(self, length: int) -> tuple[int, int]:
        """Of the row of inputs and that of targets, of `length` for the former."""
        raise NotImplementedError

    def sizes(self, num_inputs: Counts, num_targets: Counts, length: int) -> tuple[Counts, Counts]:
        """What examples take of the row of inputs and that of targets, of their numbers of tokens [n]."""
        raise NotImplementedError

    def are_cut(self, num_inputs: Counts, num_targets: Counts, length: int) -> Bool[np.ndarray, " examples"]:
        """Bool [n]: of which examples inputs or targets are cut."""
        raise NotImplementedError

    def prompt(self, inputs: Tokens, length: int) -> list[int]:
        """What of `inputs`, with the marks around them, a model reads in a row of `length`."""
        raise NotImplementedError

    def row(self, examples: Sequence[Example], length: int) -> dict[str, np.ndarray]:
        """Examples one after another, each as inputs and targets; they must fit, see `sizes`."""
        raise NotImplementedError

    def align(self, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The objective's row of a text with the keys and lengths of rows of examples."""
        raise NotImplementedError


@dataclass(frozen=True)
class EncoderDecoderRows(ExampleRows):
    """The encoder reads the inputs, the decoder says the targets, both ended by eos (Raffel et al. 2020 §2.4).

    Beside denoising both begin with bos, and the decoder with eos, as BART has it. What is too long is cut at its end,
    before eos, as T5's `append_eos_after_trim` does.
    """

    def __post_init__(self):
        if self.special.eos is None or (self._framed and self.special.bos is None):
            raise UserError("examples end with eos, beside denoising begin with bos: set config.vocabulary.eos and bos")

    @property
    def _framed(self) -> bool:
        return self.objective.frames

    @property
    def _around(self) -> int:
        """How many special tokens each part has."""
        return 2 if self._framed else 1

    @override
    def lengths(self, length: int) -> tuple[int, int]:
        """Of the encoder's row and the decoder's."""
        return length, self.target_length or self.objective.target_length(length)

    @override
    def sizes(self, num_inputs: Counts, num_targets: Counts, length: int) -> tuple[Counts, Counts]:
        """What examples take of the encoder's row and the decoder's, of their numbers of tokens [n]."""
        of_inputs, of_targets = self.lengths(length)
        return np.minimum(num_inputs + self._around, of_inputs), np.minimum(num_targets + self._around, of_targets)

    @override
    def are_cut(self, num_inputs: Counts, num_targets: Counts, length: int) -> Bool[np.ndarray, " examples"]:
        """Bool [n]: of which examples inputs or targets are cut."""
        of_inputs, of_targets = self.lengths(length)
        return (num_inputs > of_inputs - self._around) | (num_targets > of_targets - self._around)

    @override
    def prompt(self, inputs: Tokens, length: int) -> list[int]:
        """What the encoder reads of `inputs` in a row of `length`."""
        begin = [self.special.required("bos")] if self._framed else []
        return [*begin, *inputs[: length - self._around], self.special.required("eos")]

    @override
    def row(self, examples: Sequence[Example], length: int) -> dict[str, np.ndarray]:
        """Examples one after another, each as inputs and targets; they must fit, see `sizes`.

        Returns:
          `tokens` and `mask` [length], `decoder_tokens` and `targets` [target_length] int32, `target_weights` float32.
          If `segmented`, `segment_ids` and `decoder_segment_ids`, the example's number from 1, 0 at padding, and
          `decoder_positions`, counted from its first token.
        """
        pad, limits = self.special.pad or 0, self.lengths(length)
        (tokens, segment_ids), (targets, decoder_segment_ids) = (
            _joined([self.prompt(part, limit) for part in parts], limit, pad)
            for parts, limit in zip(zip(*examples, strict=True), limits, strict=True)
        )
        decoder_tokens = np.empty_like(targets)
        decoder_tokens[1:] = targets[:-1]
        positions = places(decoder_segment_ids)
        decoder_tokens[(positions == 0) & (decoder_segment_ids > 0)] = (
            self.special.required("eos") if self._framed else pad
        )
        made = {
            "tokens": tokens,
            "mask": (segment_ids > 0).astype(np.int32),
            "decoder_tokens": decoder_tokens,
            "targets": targets,
            "target_weights": (decoder_segment_ids > 0).astype(np.float32),
        }
        if self.segmented:
            made |= {"segment_ids": segment_ids, "decoder_segment_ids": decoder_segment_ids}
            made["decoder_positions"] = positions
        return made

    @override
    def align(self, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The objective's row of a text with the keys and lengths of rows of examples."""
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
    """A decoder reads the inputs and goes on with the targets and eos; what is predicted are these alone.

    Beside a prefix LM the inputs see all of themselves. Without inputs and what begins texts, eos stands for them.
    Inputs are cut to what `target_length` leaves of a row whatever their targets, so that they are the same when an
    answer is asked for.
    """

    def __post_init__(self):
        if self.special.eos is None:
            raise UserError("examples end with eos: set config.vocabulary.eos")

    @property
    def _num_targets(self) -> int:
        """Most tokens of the targets, their end included."""
        if self.target_length is None:
            raise UserError(
                "a decoder's row is shared by inputs and targets: set config.data.inputs_targets.target_length"
            )
        return self.target_length

    @override
    def lengths(self, length: int) -> tuple[int, int]:
        """Of the row, twice: inputs and targets share it."""
        return length, length

    @override
    def sizes(self, num_inputs: Counts, num_targets: Counts, length: int) -> tuple[Counts, Counts]:
        """What examples take of the row, twice; see `EncoderDecoderRows.sizes`."""
        inputs = np.clip(num_inputs + len(self.begin), 1, length + 1 - self._num_targets)
        size = inputs + np.minimum(num_targets, self._num_targets - 1)
        return size, size

    @override
    def are_cut(self, num_inputs: Counts, num_targets: Counts, length: int) -> Bool[np.ndarray, " examples"]:
        """Bool [n]: of which examples inputs or targets are cut."""
        room = length + 1 - self._num_targets - len(self.begin)
        return (num_inputs > room) | (num_targets >= self._num_targets)

    @override
    def prompt(self, inputs: Tokens, length: int) -> list[int]:
        """What of `inputs` goes before the targets in a row of `length`."""
        return [*self.begin, *inputs][: length + 1 - self._num_targets] or [self.special.required("eos")]

    @override
    def row(self, examples: Sequence[Example], length: int) -> dict[str, np.ndarray]:
        """Examples one after another, each as inputs and targets; they must fit, see `sizes`.

        Returns:
          `tokens` and `targets` [length] int32, `target_weights` float32, 1 at targets and eos; beside a prefix LM
          `prefix_lengths` [] int32. If `segmented`, `segment_ids`, the example's number from 1, 0 at padding, and
          `positions`, counted from its first token.
        """
        prompts = [self.prompt(inputs, length) for inputs, _ in examples]
        answers = [[*targets[: self._num_targets - 1], self.special.required("eos")] for _, targets in examples]
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        pad = self.special.pad or 0
        tokens, segment_ids = _joined([text[:-1] for text in whole], length, pad)
        targets, _ = _joined([text[1:] for text in whole], length, pad)
        is_answer = [[0] * (len(prompt) - 1) + [1] * len(rest) for prompt, rest in zip(prompts, answers, strict=True)]
        made = {"tokens": tokens, "targets": targets, "target_weights": _joined(is_answer, length, 0)[0]}
        made["target_weights"] = made["target_weights"].astype(np.float32)
        if self.segmented:
            made |= {"segment_ids": segment_ids, "positions": places(segment_ids)}
        if self.objective.has_prefix:
            made["prefix_lengths"] = np.array(len(prompts[0]), np.int32)
        return made

    @override
    def align(self, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The objective's row of a text with the keys of rows of examples."""
        if not self.segmented or "segment_ids" in row:
            return row
        num = len(row["tokens"])
        return row | {"segment_ids": np.ones(num, np.int32), "positions": np.arange(num, dtype=np.int32)}


def _joined(
    parts: Sequence[Sequence[int]], length: int, pad: int
) -> tuple[Int[np.ndarray, " {length}"], Int[np.ndarray, " {length}"]]:
    """Parts one after another as a row [length] int32, and the number of each token's part from 1, 0 at padding."""
    sizes = [len(part) for part in parts]
    row, numbers = np.full(length, pad, np.int32), np.zeros(length, np.int32)
    row[: sum(sizes)] = np.concatenate([np.asarray(part, np.int32) for part in parts])
    numbers[: sum(sizes)] = np.repeat(np.arange(1, len(parts) + 1), sizes)
    return row, numbers
