"""What an objective is: the role that each file of this package plays once."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plm_jax.common.roles import Role
from plm_jax.objectives.special import Special


class Objective(Role):
    """What a model is asked to predict of a text: the noise, the targets, and all that the rest asks about them.

    A choice sets `kind`, `architectures`, `targets` and `apply`, and `loss` unless it is the next token's; of all else
    the defaults are those of an objective that makes rows of a text as long as they are.

    Attributes:
      architectures: kinds of the models that it trains.
      loss: kind of the loss that is minimised, in `losses/`.
      loss_fields: its own fields that are the loss's, too.
      targets: what is predicted, as a page of figures says it.
      reads: what it asks of examples besides tokens: `word_starts`, the rising indices of the tokens that begin words,
        or `sentence_starts`, where sentences begin.
      takes: of which forms examples may be: `text`, a stretch of documents one after another, without marks around it;
        `row`, a row whose marks and padding are in their place, and stay there; `stream`, what ELMo's streams
        give; `labelled`, the texts of an example and its label.
      frames: whether it puts a text, of up to `input_length` tokens, between the marks that begin and end a row.
      takes_begin: whether texts may begin with special ids of the layout's choice.
      has_prefix: whether rows begin with a prefix that sees all of itself, `prefix_lengths`.
      fills_blanks: whether rows are a text with blanks and then what fills them.
      marks_spans: whether each target tells its span: `target_left`, `target_right`, `target_offsets`.
      is_likelihood: whether each token of a text that has one before it is a target once and is told from these alone,
        so that the loss of a text counts its bits.
      carries_state: whether its loss carries the model's recurrent state, if it has one, from a row to the same row of
        the next batch. False: each row begins with a fresh state.
      example_rows: a class of `objectives.examples`, how examples with inputs and targets become rows beside its own;
        None: they do not.
      separators: names of the special ids that follow each document of a stream; the first that the vocabulary has is
        written.
      duplicates: how many draws each row has, an epoch each, after which they come again; 0: a new one every time.
      negative_samples: how many words a target is compared with in training; 0: all.
      whole_words: how many words are masked together at most; 0: tokens are one by one. See `left_out`.
    """

    architectures: ClassVar[tuple[str, ...]]
    loss: ClassVar[str] = "next_token"
    loss_fields: ClassVar[tuple[str, ...]] = ()
    targets: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ("text",)
    frames: ClassVar[bool] = False
    takes_begin: ClassVar[bool] = False
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

    @property
    def loss_settings(self) -> dict[str, Any]:
        """The fields of the loss that are its own, too."""
        return {name: getattr(self, name) for name in self.loss_fields}

    def input_length(self, length: int) -> int:
        """How many tokens make a row of `length`."""
        return length

    def stride(self, length: int) -> int:
        """By how many tokens the inputs of consecutive rows advance; by default rows do not overlap."""
        return self.input_length(length)

    def row_length(self, length: int) -> int:
        """How many tokens a row has, of an encoder-decoder the encoder's, where `config.data.length` is `length`."""
        return length

    def num_positions(self, length: int) -> int:
        """How many places the tokens of a row of `length` have."""
        return length

    @property
    def rows_an_example(self) -> int:
        """How many rows an example of a batch is, on an axis of their own where they are several."""
        return 1

    def target_length(self, length: int) -> int:
        """Slots for targets in a row; of two directions, in each."""
        return length

    def left_out(self, example: dict[str, np.ndarray], special: Special) -> tuple[int, int]:
        """Returns how many tokens of an example are in words too long for a target, and how many there are."""
        return 0, len(example["tokens"])

    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """The example, `tokens` [input_length] and what it `reads`, with noise and targets; it stays as it is."""
        raise NotImplementedError


@dataclass(frozen=True)
class BoundObjective:
    """An objective bound to the special ids that it writes."""

    settings: Objective
    special: Special

    @property
    def separator(self) -> int | None:
        """The id that follows each document of a stream; None: there is none."""
        ids = (getattr(self.special, name) for name in self.settings.separators)
        return next((found for found in ids if found is not None), None)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that it reads besides tokens."""
        return self.settings.reads

    @property
    def frames(self) -> bool:
        """Whether it puts a text between special ids."""
        return self.settings.frames

    @property
    def duplicates(self) -> int:
        """Number of draws of each row; 0 draws anew every time."""
        return self.settings.duplicates

    def input_length(self, length: int) -> int:
        """How many tokens make a row of `length`."""
        return self.settings.input_length(length)

    def stride(self, length: int) -> int:
        """By how many tokens the inputs of consecutive rows advance."""
        return self.settings.stride(length)

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The example with noise and targets; `example` holds `tokens` [input_length] and stays as it is."""
        return self.settings.apply(example, self.special, rng)
