"""Translation language modeling."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from numpy import ndarray
from typing_extensions import override

from plm_jax.objectives.masked_lm import MaskedLM
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class TranslationLM(MaskedLM):
    """Masked language modeling of texts, and of pairs of a text and its translation.

    This is the objective of XLM (Conneau and Lample 2019, arXiv:1901.07291).

    The layout `translations` makes rows of pairs, in which a masked token can be predicted from its own sentence and
    from the translation. As in `mask_out` of facebookresearch/XLM (xlm/trainer.py), each token except the first token
    of a row is predicted with probability `rate`; this includes special tokens. With `smoothing`, which requires that
    `independent` is False, bos, eos, cls and sep are never predicted, because XLM gives special tokens a sampling
    weight of 0 (xlm/data/loader.py).
    """

    kind: ClassVar[str] = "translation_lm"
    targets: ClassVar[str] = "the masked tokens, in rows of translations those of both texts"
    independent: bool = True

    @override
    def is_maskable(
        self, tokens: Int[ndarray, " real"], mask: Int[ndarray, " real"], special: Special
    ) -> Bool[ndarray, " real"]:
        maskable = super().is_maskable(tokens, mask, special) if self.smoothing else mask > 0
        maskable[:1] = False
        return maskable
