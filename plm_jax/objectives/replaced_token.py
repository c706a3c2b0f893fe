"""Replaced token detection."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common import ranges
from plm_jax.objectives.masked_lm import MaskedLM


@dataclass(frozen=True)
class ReplacedToken(MaskedLM):
    """Tell the tokens that a generator made up from those of the text (ELECTRA, Clark et al. 2020, arXiv:2003.10555).

    The example is that of the generator, a masked language model: the device draws its samples, and knows which of them
    differ from the text (`losses.replaced_token`). As in google-research/electra
    (pretrain/pretrain_helpers.py) the mask hides 85 % of the tokens to predict, and the generator sees the others; the
    paper hides all. The source may draw a position twice, this does not.

    Attributes:
      discriminator_weight: of the discriminator's loss beside the generator's.
    """

    kind: ClassVar[str] = "replaced_token"
    architectures: ClassVar[tuple[str, ...]] = ("electra",)
    loss: ClassVar[str] = "replaced_token"
    loss_fields: ClassVar[tuple[str, ...]] = ("discriminator_weight",)
    targets: ClassVar[str] = "the masked tokens, which the generator fills; the loss has the discriminator's added up"
    mask_share: ranges.Share = 0.85
    random_share: ranges.Share = 0.0
    discriminator_weight: ranges.Scale = 50.0
