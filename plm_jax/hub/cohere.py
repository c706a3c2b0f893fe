"""PaLM (Chowdhery et al. 2022) in the format of `CohereForCausalLM`.

A Cohere model with a single key-value head has the architecture of PaLM.

The attention and the feed-forward of a block read the output of the same norm, and their outputs are added to the input
of the block. Dense layers are torch's `Linear`, stored [out, in]. The dimensions of queries and keys are ordered for
rotation of neighboring dimensions.
"""

from dataclasses import dataclass, replace

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.family import Tensor
from plm_jax.hub.fields import Entry, Field, Fixed, changed, check
from plm_jax.hub.llama import BLOCKS, EMBEDDINGS, LAYER, LlamaFamily, decoder_base
from plm_jax.hub.rope import RotaryFields


@dataclass(frozen=True)
class LogitScale(Entry):
    """Factor by which the logits are multiplied: width ** -0.5 as in PaLM, or 1."""

    name: str = "logit_scale"

    @override
    def values(self, config):
        scale = config.get(self.name, 0.0625)
        by_width = config["hidden_size"] ** -0.5
        is_known = isinstance(scale, float | int) and (abs(scale - by_width) < 1e-7 or scale == 1)
        check(self.name, scale, is_known, f"1, or hidden_size ** -0.5, here {by_width}")
        return {self.name: scale}

    @override
    def settings(self, values):
        return {"head.scale_by_width": values[self.name] != 1}

    @override
    def fields(self, model, fields):
        return {self.name: model.embedding.width**-0.5 if model.head.scale_by_width else 1.0}


class CohereFamily(LlamaFamily):
    """Cohere's Command-R and PaLM. Models with norms of queries and keys are not supported."""

    kind = "cohere"
    name = "Cohere"
    base = replace(
        decoder_base(models.Rotary(interleaved=True)),
        norm=models.NormConfig(placement="parallel", shared=True, bias=False),
    )
    fields = changed(
        tuple(entry for entry in LlamaFamily.fields if not isinstance(entry, RotaryFields)),
        Field("layer_norm_eps", "norm.epsilon", 1e-5),
        LogitScale(),
        RotaryFields(theta=500_000.0),
        Fixed("use_qk_norm", False),
        without=("rms_norm_eps", "mlp_bias"),
        vocab_size=256000,
        hidden_size=8192,
        intermediate_size=22528,
        num_hidden_layers=40,
        num_attention_heads=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    tensors = (
        *EMBEDDINGS,
        Tensor(f"{LAYER}.input_layernorm.weight", (f"{BLOCKS}/attention_norm/scale",)),
        *(tensor for tensor in LlamaFamily.tensors if "layernorm" not in tensor.name and tensor not in EMBEDDINGS),
    )
    tokenizer_class = "CohereTokenizer"
    vocabulary_files = {}
    tasks = {}
    other_heads = "(?!)"

    @override
    def architecture(self, model):
        return "CohereForCausalLM"
