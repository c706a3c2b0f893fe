"""Replaced token detection."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common import ranges
from plm_jax.objectives.masked_lm import MaskedLM


@dataclass(frozen=True)
class ReplacedToken(MaskedLM):
    """Detection of tokens replaced by a generator (ELECTRA, Clark et al. 2020, arXiv:2003.10555).

    Rows are the rows of the generator, a masked language model. The samples of the generator are drawn on the device
    and compared with the text on the device (`losses.replaced_token`). As in google-research/electra
    (pretrain/pretrain_helpers.py), 85 % of the tokens to predict are masked, and the generator sees the remaining 15 %;
    the paper masks all of them. That code may draw a position twice; this implementation does not.

    Attributes:
      discriminator_weight: factor of the discriminator's loss; the generator's loss has the factor 1.
    """

    kind: ClassVar[str] = "replaced_token"
    architectures: ClassVar[tuple[str, ...]] = ("electra",)
    loss: ClassVar[str] = "replaced_token"
    loss_fields: ClassVar[tuple[str, ...]] = ("discriminator_weight",)
    targets: ClassVar[str] = "the masked tokens, which the generator fills; the loss has the discriminator's added up"
    mask_share: ranges.Share = 0.85
    random_share: ranges.Share = 0.0
    discriminator_weight: ranges.Scale = 50.0
