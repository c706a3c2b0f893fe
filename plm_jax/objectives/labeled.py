"""The base of objectives of labeled examples: how texts become the rows of each architecture.

encoder          BERT's [CLS] A [SEP] B [SEP] with token types; without cls and sep RoBERTa's <s> A </s></s> B </s>
decoder          GPT-1's start A delimiter B extract (Radford et al. 2018 §3.3): bos, sep and cls
encoder_decoder  BART's (Lewis et al. 2020 §3): the decoder reads eos and then the encoder's row
elmo             <S> words </S>, and their characters
xlnet            A <sep> B <sep> <cls> with token types (Yang et al. 2019)
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


class TextRow(NamedTuple):
    """A row of labeled texts.

    Attributes:
      starts: index in the row of the first token of each text.
      sizes: number of tokens of each text after truncation.
    """

    row: Row
    starts: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class LabeledObjective(Objective):
    """The base of objectives that predict the label of an example.

    Examples come from the layout `labeled`. An example has `texts`, a list of arrays of tokens; `length`, the number of
    tokens of a row; and the label. For ELMo, an example also has `spelling` [words, C], the characters of each word of
    the vocabulary.

    Attributes:
      form: kind of the sources' labels, and of the model's head.
      rows: architecture of the model, which decides the format of rows.
      lm_coefficient: coefficient of a decoder's auxiliary language modeling loss (λ of Radford et al. 2018). If it is
        above 0, rows have `targets` and `target_weights` for every token except the first token and padding.
    """

    form: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]] = ("encoder", "encoder_decoder")
    loss: ClassVar[str] = "task"
    loss_fields: ClassVar[tuple[str, ...]] = ("lm_coefficient",)
    inputs: ClassVar[tuple[str, ...]] = ("labeled",)
    frames: ClassVar[bool] = True
    carries_state: ClassVar[bool] = False
    rows: Literal["encoder", "decoder", "encoder_decoder", "elmo", "xlnet"] = "encoder"
    lm_coefficient: ranges.Scale = 0.0

    def __post_init__(self):
        if self.rows not in self.architectures:
            raise UserError(
                f"config.objective.rows is {self.rows}: {self.kind} supports {', '.join(self.architectures)}"
            )
        if self.lm_coefficient < 0 or (self.lm_coefficient and self.rows != "decoder"):
            raise UserError(
                f"config.objective.lm_coefficient is {self.lm_coefficient}, with rows for {self.rows}: set it to at "
                "least 0 for a decoder, and to 0 otherwise"
            )

    @property
    @override
    def task_head(self) -> str:
        return self.form

    @property
    def min_texts(self) -> int:
        """Minimum number of texts of an example."""
        return 1

    def placeholder_label(self) -> dict[str, Any]:
        """Returns the entries of an example that describe its label, with placeholder values."""
        raise NotImplementedError

    @override
    def target_length(self, length: int) -> int:
        """Returns the length of the decoder's row of an encoder-decoder, or of a row with targets for the `lm` loss.

        For other rows, returns 0.
        """
        return length if self.lm_coefficient or self.rows == "encoder_decoder" else 0

    def special_tokens(self, num_texts: int) -> tuple[str, ...]:
        """Returns the names of the special ids, fields of `config.vocabulary`, that the rows of a decoder need.

        The result is empty for other architectures. Their rows have the special tokens of pretraining.
        """
        if self.rows != "decoder":
            return ()
        return ("bos", "sep", "cls") if num_texts > 1 else ("bos", "cls")

    def row_format(self, special: Special) -> RowFormat:
        """Returns the format of the rows, including their special tokens.

        Raises:
          UserError: the vocabulary lacks a special id that the format needs.
        """
        if self.rows == "decoder" and special.frame is not None:
            return RowFormat(*special.frame, pad=special.pad or 0)
        if self.rows == "decoder":
            between = () if special.sep is None else (special.sep,)  # Not needed for a single text.
            return RowFormat((special.required("bos"),), between, (special.required("cls"),), special.pad or 0)
        if self.rows == "xlnet":
            return RowFormat.xlnet(special.required("sep"), special.required("cls"), special.pad or 0)
        return RowFormat.labeled(special)

    def num_windows(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Int[np.ndarray, " examples"]:
        """Returns the number of windows into which each example is split, int [n]; by default, 1.

        Args:
          sizes: [n, texts], number of tokens of each text of each example.
        """
        return np.ones(len(sizes), np.int64)

    def are_truncated(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Bool[np.ndarray, " examples"]:
        """Returns whether each example is truncated, bool [n].

        Args:
          sizes: [n, texts], number of tokens of each text of each example.
        """
        if self.rows == "decoder":
            return np.any(sizes > self._decoder_room(length, sizes.shape[1], special), axis=1)
        return sizes.sum(1) > self.row_format(special).room(length, sizes.shape[1])

    def make_row(
        self, texts: Sequence[Integer[np.ndarray, " _"]], example: dict[str, Any], special: Special
    ) -> TextRow:
        """Returns the row for one or two texts, which are truncated to fit into the `length` of the example.

        In a decoder's row, each of two texts gets half of the room that special tokens leave. In other rows, the longer
        of two texts is truncated first, like `longest_first` in Hugging Face's tokenizers.

        Returns:
          A `TextRow`, whose row has `tokens` and `mask` [L] int32. If the format `has_types`, as for BERT and XLNet,
          rows also have `token_types` [L] int32. Rows of an encoder-decoder also have `decoder_tokens` and
          `decoder_mask` [L] int32. Rows of ELMo also have `characters` [L, C] int32. If `lm_coefficient` is above 0,
          rows also have `targets` [L] int32 and `target_weights` [L] float32.
        """
        length, row_format = example["length"], self.row_format(special)
        if self.rows == "decoder":
            texts = [text[: self._decoder_room(length, len(texts), special)] for text in texts]
        else:
            sizes = truncate_longest([len(text) for text in texts], row_format.room(length, len(texts)))
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
        return TextRow(row, row_format.text_starts(sizes), sizes)

    def _decoder_room(self, length: int, num_texts: int, special: Special) -> int:
        """Returns the maximum number of tokens of each text in a decoder's row.

        For two texts and three special tokens in a row of even length, it is `length // 2 - 2`, like `n_ctx // 2 - 2`
        in openai/finetune-transformer-lm.
        """
        return self.row_format(special).room(length, num_texts) // num_texts


def truncate_longest(sizes: Sequence[int], room: int) -> list[int]:
    """Returns the sizes of one or two texts, in the given order, after truncation to `room` tokens in total.

    Tokens are removed from the longer text until both texts are equally long, and then from both. If both texts are
    truncated and `room` is odd, the longer text keeps one token more than the shorter text. If the texts were equally
    long, the second text keeps one token more.
    """
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    if sum(sizes) <= room:
        return list(sizes)
    short = max(0, min(*sizes, room // 2))
    cut = [short, room - short]
    return cut[::-1] if sizes[0] > sizes[1] else cut


def stacked(rows: Sequence[Row]) -> Row:
    """Stacks rows along a new first axis."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def number(value: Any, dtype: type = np.int32) -> Num[np.ndarray, ""]:
    """Returns a label as a scalar array of a dtype."""
    return np.asarray(value, dtype)
