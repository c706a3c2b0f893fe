"""A Hugging Face family of one's own: Qwen2 (Yang et al. 2024), a LLaMA whose queries, keys and values have a bias."""

from dataclasses import replace

from typing_extensions import override

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.hub.fields import Field, Fixed, changed
from plm_jax.hub.llama import LlamaFamily


class Qwen2Family(LlamaFamily):
    """Qwen2. The defaults are those of `Qwen2Config`."""

    kind = "qwen2"
    name = "Qwen2"
    base = replace(LlamaFamily.base, attention=replace(LlamaFamily.base.attention, bias=True, out_bias=False))
    fields = changed(
        LlamaFamily.fields,
        Field("num_key_value_heads", "attention.kv_heads", 32, same_as="num_attention_heads"),
        Fixed("use_sliding_window", False),
        without=("attention_bias", "mlp_bias"),
        vocab_size=151936,
        intermediate_size=22016,
        max_position_embeddings=32768,
    )
    task_class = "Qwen2"

    @override
    def architecture(self, model):
        return "Qwen2ForCausalLM"


def get_config():
    """Returns the demo's GPT-2 with the architecture of a small Qwen2."""
    run = demo.gpt2()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6}
    model = Qwen2Family().to_settings(
        sizes | {"head_dim": 8, "num_key_value_heads": 2, "vocab_size": run.model.vocab_size}
    )
    return config.to_config_dict(replace(run, model=model))
