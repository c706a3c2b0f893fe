"""The special ids and similar words of a vocabulary, as objectives need them."""

from dataclasses import dataclass, field

from plm_jax.common.special_ids import NAMES, SpecialIds
from plm_jax.objectives.similar_words import SimilarWords


@dataclass(frozen=True, kw_only=True)
class Special(SpecialIds):
    """Special ids of a vocabulary; None for ids that the vocabulary lacks.

    Attributes:
      sentinels: ids of sentinels in the order of their use.
      vocab_size: number of ids, sentinels included.
      frame: three tuples of ids: before, between and after the texts in the labeled rows of a decoder; None: bos, sep
        and cls.
      similar_words: similar words that can replace a word; None if `prepare` has tokenized no file of similar words.
    """

    sentinels: tuple[int, ...] = ()
    vocab_size: int = 0
    frame: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    similar_words: SimilarWords | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, ids: SpecialIds, vocab_size: int = 0, num_sentinels: int = 0) -> "Special":
        """Returns the special ids of a vocabulary, in which the last `num_sentinels` ids are sentinels.

        The sentinels are used in descending order of their ids.
        """
        sentinels = tuple(range(vocab_size - 1, vocab_size - 1 - num_sentinels, -1))
        special_ids = {name: getattr(ids, name) for name in NAMES}
        return cls(**special_ids, sentinels=sentinels, vocab_size=vocab_size)
