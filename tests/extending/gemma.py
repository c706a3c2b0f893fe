"""Gemma (Gemma Team 2024): a Hugging Face family, trained with two optimizers, and with a teacher if there is one."""

from dataclasses import replace

from typing_extensions import override

from plm_jax import config, losses, models
from plm_jax.configs import demo
from plm_jax.hub.fields import Field, Fixed, activation, changed
from plm_jax.hub.llama import LlamaFamily
from plm_jax.training.muon import MuonConfig
from plm_jax.training.optimizers import HIDDEN_MATRICES


class GemmaFamily(LlamaFamily):
    """Gemma 1, whose norms are stored minus 1. The defaults are those of `GemmaConfig`."""

    kind = "gemma"
    name = "Gemma"
    base = replace(
        LlamaFamily.base,
        embedding=models.EmbeddingConfig(1, 1, scale_by_width=True),
        feed_forward=models.FeedForwardConfig(1, "gelu_tanh", bias=False, gated=True),
    )
    fields = changed(
        LlamaFamily.fields,
        Field("num_key_value_heads", "attention.kv_heads", 16, same_as="num_attention_heads"),
        Field("head_dim", "attention.head_dim", 256),
        activation("hidden_act", "gelu_pytorch_tanh"),
        Fixed("use_bidirectional_attention", False),
        without=("mlp_bias",),
        vocab_size=256000,
        hidden_size=3072,
        intermediate_size=24576,
        num_hidden_layers=28,
        num_attention_heads=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    tensors = tuple(
        replace(tensor, plus=-1.0) if tensor.parameters[0].endswith("norm/scale") else tensor
        for tensor in LlamaFamily.tensors
    )
    tokenizer_class = "GemmaTokenizer"
    task_class = "Gemma"

    @override
    def architecture(self, model):
        return "GemmaForCausalLM"


def get_config(teacher: str = ""):
    """Returns the demo's GPT-2 as a small Gemma with Muon for its matrices; `teacher` is a run or a checkpoint."""
    run = demo.gpt2()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6}
    sizes |= {"head_dim": 16, "num_key_value_heads": 1, "vocab_size": run.model.vocab_size}
    muon = MuonConfig(weight_decay=0.1, scaling="match_rms_adamw")
    train = run.train
    if teacher:
        references = {"teacher": config.ReferenceConfig(teacher)}
        train = replace(train, references=references, loss=losses.Distillation(alpha_cos=0.0))
    return config.to_config_dict(
        replace(
            run,
            model=GemmaFamily().to_settings(sizes),
            optimizer=replace(run.optimizer, groups=((HIDDEN_MATRICES, muon, 1.0),)),
            train=train,
        )
    )
