"""The interface of objectives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.objectives.special import Special


class Objective(Role):
    """A pretraining or fine-tuning objective: the noise, the targets, and the shapes of its rows.

    A subclass defines `kind`, `architectures`, `targets` and `apply`, and also `loss` if the loss is not `next_token`.
    All other defaults suit an objective whose rows are as long as their text.

    Attributes:
      architectures: architectures of the models that the objective can train.
      loss: kind of the loss that is minimized, in `losses/`.
      loss_fields: names of the objective's fields that are also fields of the loss.
      targets: description of the targets, for reports.
      reads: columns that the objective needs in addition to tokens. `word_starts` and `sentence_starts` are the sorted
        indices of the first tokens of words and of sentences. `token_counts` are the numbers of occurrences of each
        token in the training split of its source.
      inputs: forms of examples that the objective accepts. `text`: consecutive documents without special tokens around
        the row. `row`: a row with special tokens and padding, which the objective does not move. `stream`: an example
        of ELMo's streams. `labeled`: the texts of an example and its label. `record`: the named texts and numbers of a
        record.
      frames: whether the objective puts special tokens before and after a text.
      allows_begin: whether the layout may put special ids before texts.
      has_prefix: whether rows begin with a prefix of `prefix_lengths` tokens, within which attention is bidirectional.
      fills_blanks: whether a row consists of a text with blanks and, after it, the contents of the blanks.
      marks_spans: whether rows have the span of each target: `target_left`, `target_right`, `target_offsets`.
      is_likelihood: whether each token of a text, except the first, is a target exactly once and is predicted from the
        tokens before it. The loss then measures the bits of the text.
      carries_state: whether a model with a recurrent state carries the state from a row to the same row of the next
        batch. If False, each row begins with a fresh state.
      example_rows: class of `objectives.examples` that makes rows of examples with inputs and targets; None if examples
        are not supported.
      separators: names of special ids. The first one that the vocabulary has follows each document of a stream.
      duplicates: number of different draws of the noise of each row. Each epoch uses one draw, and then the draws
        repeat; 0: the noise is drawn again every time.
      negative_samples: number of sampled words with which a target is compared in training; 0 compares it with all
        words.
      whole_words: maximum number of words that are masked together; 0 masks single tokens.
      similar_share: share of the predicted words that are replaced by words from `Special.similar_words`.
    """

    architectures: ClassVar[tuple[str, ...]]
    loss: ClassVar[str] = "next_token"
    loss_fields: ClassVar[tuple[str, ...]] = ()
    targets: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    frames: ClassVar[bool] = False
    allows_begin: ClassVar[bool] = False
    has_prefix: ClassVar[bool] = False
    fills_blanks: ClassVar[bool] = False
    marks_spans: ClassVar[bool] = False
    is_likelihood: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True
    example_rows: ClassVar[type | None] = None
    separators: ClassVar[tuple[str, ...]] = ("eos",)
    duplicates: ClassVar[int] = 0
    negative_samples: ClassVar[int] = 0
    whole_words: ClassVar[int] = 0
    similar_share: ClassVar[float] = 0.0

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the texts of a record that the objective reads; `apply` gets the tokens [n] of each text."""
        return ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numbers of a record that the objective reads; `apply` gets each number as float32 []."""
        return ()

    @property
    def task_head(self) -> str | None:
        """Kind of the head `task` of the model that the objective trains; None if it does not train this head."""
        return None

    @property
    def loss_settings(self) -> dict[str, Any]:
        """Values of the fields in `loss_fields`, by name."""
        return {name: getattr(self, name) for name in self.loss_fields}

    def with_fields(self, fields: Mapping[str, Any], where: str) -> Self:
        """Returns the objective with new values of some fields; `where` is the path of the fields in error messages.

        Raises:
          UserError: a field does not exist, its value is invalid, or it is a field of the loss.
        """
        if not fields:
            return self
        for name in fields:
            if name in self.loss_fields:
                raise UserError(
                    f"{where}.{name} is a setting of the loss, which is the same in all steps: leave it out"
                )
        return trees.parse(type(self), trees.to_dict(self) | dict(fields), where)

    def input_length(self, length: int) -> int:
        """Returns the number of tokens of text from which a row of `length` is made."""
        return length

    def stride(self, length: int) -> int:
        """Returns the number of tokens between the starts of consecutive rows; by default, rows do not overlap."""
        return self.input_length(length)

    def row_length(self, length: int) -> int:
        """Returns the length of a row if `config.data.length` is `length`.

        For an encoder-decoder, this is the length of the encoder's row.
        """
        return length

    def num_positions(self, length: int) -> int:
        """Returns the number of positions that a row uses if `config.data.length` is `length`."""
        return self.row_length(length)

    @property
    def rows_per_example(self) -> int:
        """Number of rows per example; if it is not 1, these rows have an additional axis in a batch."""
        return 1

    def target_length(self, length: int) -> int:
        """Returns the number of slots for targets in a row, per direction for a bidirectional objective."""
        return length

    def max_targets(self, num_tokens: int) -> int:
        """Returns the maximum number of targets in a row with `num_tokens` tokens other than padding.

        0 means that the number of targets varies too much to be considered when rows are packed. Targets that exceed
        the slots of a packed row are then dropped.
        """
        return self.target_length(num_tokens)

    def count_unmaskable(self, example: dict[str, np.ndarray], special: Special) -> tuple[int, int]:
        """Returns the number of tokens in words that are too long to be masked, and the number of all candidates.

        Candidates are the tokens that the objective may mask, regardless of the lengths of words. By default, no word
        is too long, and all tokens are candidates.
        """
        return 0, len(example["tokens"])

    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Returns a row with noise and targets.

        Args:
          example: for text, `tokens` [input_length] and the columns in `reads`; other forms have other keys. The
            example is not modified.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class BoundObjective:
    """An objective together with the special ids of a vocabulary."""

    settings: Objective
    special: Special

    @property
    def separator(self) -> int | None:
        """Id that follows each document of a stream; None if no id follows."""
        ids = (getattr(self.special, name) for name in self.settings.separators)
        return next((token for token in ids if token is not None), None)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns, other than tokens, that the objective needs."""
        return self.settings.reads

    @property
    def frames(self) -> bool:
        """Whether the objective puts special tokens before and after a text."""
        return self.settings.frames

    @property
    def duplicates(self) -> int:
        """Number of different draws of the noise of each row; 0: the noise is drawn again every time."""
        return self.settings.duplicates

    def input_length(self, length: int) -> int:
        """Returns the number of tokens of text from which a row of `length` is made."""
        return self.settings.input_length(length)

    def stride(self, length: int) -> int:
        """Returns the number of tokens between the starts of consecutive rows."""
        return self.settings.stride(length)

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns a row with noise and targets; `example` is that of `Objective.apply`."""
        return self.settings.apply(example, self.special, rng)
