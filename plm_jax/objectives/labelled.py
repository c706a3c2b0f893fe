"""What objectives of labelled examples share: how texts become the rows of each architecture.

encoder          BERT's [CLS] A [SEP] B [SEP] with token types; without cls and sep RoBERTa's <s> A </s></s> B </s>
decoder          GPT-1's start A delimiter B extract (Radford et al. 2018 §3.3): bos, sep and cls
encoder_decoder  BART's (Lewis et al. 2020 §3): the row in both sides, the decoder's shifted right behind eos
elmo             <S> words </S>, and their characters
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, Num
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.row_format import RowFormat
from plm_jax.objectives.special import Special

Row = dict[str, np.ndarray]


class Made(NamedTuple):
    """A row, and where in it each of its texts begins and how many tokens it still has."""

    row: Row
    begins: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class LabelledObjective(Objective):
    """The base of objectives that tell the label of an example.

    Examples are as the layout `labelled` gives them: `texts`, a list of arrays of tokens; `length`, of the row; the
    label; for an ELMo `spelling` [vocab_size, C], the characters of each word.

    Attributes:
      form: the kind of the sources' forms, and that of the head.
      rows: for models of which kind rows are.
      lm_coefficient: factor of the loss of a decoder's next tokens, λ of Radford et al. 2018; where it is above 0 rows
        have `targets` and `target_weights`, all real tokens but the first.
    """

    form: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]] = ("encoder", "encoder_decoder")
    loss: ClassVar[str] = "task"
    loss_fields: ClassVar[tuple[str, ...]] = ("lm_coefficient",)
    takes: ClassVar[tuple[str, ...]] = ("labelled",)
    frames: ClassVar[bool] = True
    carries_state: ClassVar[bool] = False
    rows: Literal["encoder", "decoder", "encoder_decoder", "elmo"] = "encoder"
    lm_coefficient: ranges.Scale = 0.0

    def __post_init__(self):
        if self.rows not in self.architectures:
            raise UserError(
                f"config.objective.rows is {self.rows}: {self.kind} has rows for {', '.join(self.architectures)}"
            )
        if self.lm_coefficient < 0 or (self.lm_coefficient and self.rows != "decoder"):
            raise UserError(
                f"config.objective.lm_coefficient is {self.lm_coefficient}, with rows for {self.rows}: give at least "
                "0, and 0 but for a decoder"
            )

    @property
    def least_texts(self) -> int:
        """How many texts an example has at least."""
        return 1

    def blank_label(self) -> dict[str, Any]:
        """What examples hold besides their texts, without a meaning."""
        raise NotImplementedError

    @override
    def target_length(self, length: int) -> int:
        """The next tokens of a decoder, where they are told; of an encoder-decoder the length of the decoder's row."""
        return length if self.lm_coefficient or self.rows == "encoder_decoder" else 0

    def special_tokens(self, num_texts: int) -> tuple[str, ...]:
        """The special ids, by their names in a config's `vocabulary`, that a decoder's rows take; of others none, which
        have those of their pretraining."""
        if self.rows != "decoder":
            return ()
        return ("bos", "sep", "cls") if num_texts > 1 else ("bos", "cls")

    def row_format(self, special: Special) -> RowFormat:
        """The marks of its rows."""
        if self.rows == "decoder":
            between = () if special.sep is None else (special.sep,)  # One text has none.
            return RowFormat((special.required("bos"),), between, (special.required("cls"),), special.pad or 0)
        return RowFormat.labelled(special)

    def num_windows(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Int[np.ndarray, " examples"]:
        """How many rows each example becomes [n], of whose texts these are the numbers of tokens [n, texts]."""
        return np.ones(len(sizes), np.int64)

    def are_cut(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Bool[np.ndarray, " examples"]:
        """Bool [n]: of which examples tokens are lost, of whose texts these are the numbers of tokens [n, texts]."""
        if self.rows == "decoder":
            return np.any(sizes > _decoder_room(length, sizes.shape[1]), axis=1)
        return sizes.sum(1) > self.row_format(special).room(length, sizes.shape[1])

    def make_row(self, texts: Sequence[Integer[np.ndarray, " _"]], example: dict[str, Any], special: Special) -> Made:
        """Texts, cut where they are too long, as a row of an example's `length`.

        Of two texts of an encoder's row the longer is cut, as by `longest_first` of Hugging Face's tokenizers; those of
        a decoder's each have half of the row.

        Returns:
          `tokens` and `mask` [L] int32. Of BERT's rows `token_types`; of an encoder-decoder's `decoder_tokens` and
          `decoder_mask` [L]; of an ELMo's `characters` [L, C] int32; with `lm_coefficient` above 0 `targets` [L] int32
          and `target_weights` [L] float32.
        """
        length, row_format = example["length"], self.row_format(special)
        if self.rows == "decoder":
            texts = [text[: _decoder_room(length, len(texts))] for text in texts]
        else:
            sizes = cut_longest([len(text) for text in texts], row_format.room(length, len(texts)))
            texts = [text[:size] for text, size in zip(texts, sizes, strict=True)]
        row = row_format.row(texts, length)
        if self.rows == "encoder_decoder":
            decoder_tokens = np.append(special.required("eos"), row["tokens"][:-1])
            row["decoder_tokens"], row["decoder_mask"] = decoder_tokens.astype(np.int32), row["mask"]
        elif self.rows == "elmo":
            row["characters"] = example["spelling"][row["tokens"]].astype(np.int32)
        if self.lm_coefficient:
            following = np.append(row["tokens"][1:], row_format.pad)
            row["targets"] = following.astype(np.int32)
            row["target_weights"] = np.append(row["mask"][1:], 0).astype(np.float32)
        sizes = [len(text) for text in texts]
        return Made(row, row_format.begins(sizes), sizes)


def _decoder_room(length: int, num_texts: int) -> int:
    """Most tokens of each text of a decoder's row: of two `n_ctx // 2 - 2`, as in openai/finetune-transformer-lm."""
    return length - 2 if num_texts == 1 else length // 2 - 2


def cut_longest(sizes: Sequence[int], room: int) -> list[int]:
    """The sizes of one text or two that together fit into `room`, the longer of two cut first.

    Where both lose, the second gets the odd token, unless the first is the longer one.
    """
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    if sum(sizes) <= room:
        return list(sizes)
    short = max(0, min(*sizes, room // 2))
    cut = [short, room - short]
    return cut[::-1] if sizes[0] > sizes[1] else cut


def stacked(rows: Sequence[Row]) -> Row:
    """Several rows as one with a leading axis."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def number(value: Any, dtype: type = np.int32) -> Num[np.ndarray, ""]:
    """A label [] of its type."""
    return np.asarray(value, dtype)
