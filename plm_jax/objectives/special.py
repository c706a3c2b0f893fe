"""The special ids and similar words of a vocabulary, as objectives need them."""

from dataclasses import dataclass, field

from plm_jax.common.special_ids import NAMES, SpecialIds
from plm_jax.objectives.similar_words import SimilarWords


@dataclass(frozen=True, kw_only=True)
class Special(SpecialIds):
    """Special ids of a vocabulary, None for those it lacks.

    Attributes:
      sentinels: ids of sentinels in the order of their use.
      vocab_size: number of ids, sentinels included; random tokens are drawn from all of them.
      frame: ids before, between and after the texts of a decoder's labeled rows; None for bos, sep and cls.
      similar_words: words that can replace a word, if `prepare` has tokenized a file of them.
    """

    sentinels: tuple[int, ...] = ()
    vocab_size: int = 0
    frame: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    similar_words: SimilarWords | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, ids: SpecialIds, vocab_size: int = 0, num_sentinels: int = 0) -> "Special":
        """Returns the ids of a vocabulary whose last `num_sentinels` ids are sentinels, used from the last one down."""
        sentinels = tuple(range(vocab_size - 1, vocab_size - 1 - num_sentinels, -1))
        special_ids = {name: getattr(ids, name) for name in NAMES}
        return cls(**special_ids, sentinels=sentinels, vocab_size=vocab_size)
