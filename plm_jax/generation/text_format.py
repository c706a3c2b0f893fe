"""Format of the texts that a model was trained on: its vocabulary, its special ids and the ids around a text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import Vocabulary

VOCABULARY_FILES = (
    "tokenizer.json; GPT-2: vocab.json, merges.txt; BERT: vocab.txt; T5: spiece.model; ELMo: vocabulary.txt"
)


class MissingVocabularyError(UserError):
    """Error: a model without a vocabulary was asked to read or write text."""

    def __init__(self):
        super().__init__(f"the model has no vocabulary in its directory: copy its files there ({VOCABULARY_FILES})")


@dataclass(frozen=True)
class TextFormat:
    """Format of the texts that a model was trained on.

    Attributes:
      special_ids: known ids by name, such as `mask_token_id`, with the same names as in
        `hub.pretrained.Pretrained.special_ids`.
      before: ids before each text of an encoder or encoder-decoder.
      after: ids after each text of an encoder or encoder-decoder.
      begins_with: ids before each text of a decoder.
      separator: id between the documents of a decoder; None: no such id is known, and eos separates the documents.
      has_prefix: whether a decoder was trained on prefixes, whose tokens attend to each other in both directions.
      fills_blanks: whether a decoder that has the ids for blanks fills blanks. If False, it continues its prompt.
      vocabulary_path: paths of the vocabulary's files, joined by commas; None if there are no files.
      load_vocabulary: function that returns the vocabulary and loads it in the first call; None: no vocabulary.
    """

    special_ids: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    begins_with: tuple[int, ...] = ()
    separator: int | None = None
    has_prefix: bool = False
    fills_blanks: bool = True
    vocabulary_path: str | None = None
    load_vocabulary: Callable[[], Vocabulary] | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary that reads and writes text.

        Raises:
          MissingVocabularyError: the model has no vocabulary.
        """
        if self.load_vocabulary is None:
            raise MissingVocabularyError
        return self.load_vocabulary()

    @property
    def vocabulary_size(self) -> int | None:
        """Number of ids in the vocabulary; None if there is no vocabulary."""
        return None if self.load_vocabulary is None else self.vocabulary.vocab_size

    @property
    def mask_id(self) -> int | None:
        """Id of the mask; None if `special_ids` has none."""
        return self.special_ids.get("mask_token_id")

    @property
    def eos_ids(self) -> list[int]:
        """Ids that end a text; an empty list if no such id is known."""
        vocabulary_eos = None if self.load_vocabulary is None else self.vocabulary.eos_id
        eos = self.special_ids.get("eos_token_id", vocabulary_eos)
        if eos is None:
            return []
        return [eos] if isinstance(eos, int) else list(eos)

    @property
    def start_id(self) -> int:
        """Id with which the decoder of an encoder-decoder begins. If it is not known, the padding id or 0 is used."""
        return self.special_ids.get("decoder_start_token_id", self.special_ids.get("pad_token_id", 0))

    @property
    def sentinels(self) -> range:
        """Ids of the sentinels in the order in which they are used.

        The sentinels are the last ids of the vocabulary. The first sentinel has the highest id.

        Raises:
          MissingVocabularyError: the model has no vocabulary.
        """
        size = self.vocabulary.vocab_size
        return range(size - 1, size - 1 - self.special_ids.get("sentinels", 0), -1)
