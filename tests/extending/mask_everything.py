"""A masked language model of one's own: special tokens are predicted too, as by ModernBERT's masks."""

from dataclasses import dataclass, replace

from plm_jax import config, objectives
from plm_jax.configs import demo


@dataclass(frozen=True)
class MaskEverything(objectives.MaskedLM):
    """Prediction of masked tokens, special tokens included; padding is left out."""

    kind = "mask_everything"

    def is_maskable(self, tokens, mask, special):
        """Returns whether each token of a row may be predicted, bool [n]."""
        return mask > 0


def get_config():
    """The demo's BERT with 30 % of the tokens predicted in training, and 15 % in validation."""
    run = demo.bert()
    evaluation = replace(run.evaluation, objective={"rate": 0.15})
    run = replace(run, objective=MaskEverything(rate=0.3, independent=True), evaluation=evaluation)
    return config.to_config_dict(run)
