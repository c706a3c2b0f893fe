"""mT5 (Xue et al. 2021) in Hugging Face's format: a T5 1.1 whose SentencePiece model may contain the sentinels."""

from typing_extensions import override

from plm_jax.hub.fields import changed
from plm_jax.hub.t5 import T5Family


def _count_sentinels(files: list[bytes]) -> int:
    """Returns the number of sentinels that are pieces of the SentencePiece model."""
    return files[0].count(b"<extra_id_")


class Mt5Family(T5Family):
    """mT5. The output of the decoder is never scaled before the vocabulary head."""

    kind = "mt5"
    name = "mT5"
    fields = changed(
        T5Family.fields,
        without=("scale_decoder_outputs",),
        vocab_size=250112,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
    )

    @override
    def architecture(self, model):
        return "MT5ForConditionalGeneration"

    @override
    def tokenizer_config(self, files, special_ids):
        added = special_ids.get("sentinels", 0) - _count_sentinels(files)
        return super().tokenizer_config(files, {"sentinels": added})

    @override
    def special_ids(self, files, tokenizer_config):
        return {"sentinels": _count_sentinels(files) + tokenizer_config.get("extra_ids", 0)}
