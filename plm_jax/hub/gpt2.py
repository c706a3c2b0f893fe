"""GPT-2 (Radford et al. 2019) in Hugging Face's format: `GPT2LMHeadModel` and `GPT2Model`.

Dense layers are `Conv1D`, stored [in, out] like ours. Query, key and value are fused along the last axis. The tensor
names in files of `GPT2Model` have no prefix.
"""

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm, task_layouts
from plm_jax.hub.fields import Derived, Field, Fixed, activation, initializer_range, quotient


def blocks() -> tuple[Tensor, ...]:
    """Returns the tensors of the blocks, which have the same names in GPT-1 and GPT-2."""
    layer, ours = "transformer.h.{layer}", "stack/blocks"
    fused = (f"{ours}/attention/{name}" for name in ("query", "key", "value"))
    return (
        *norm(f"{layer}.ln_1", f"{ours}/attention_norm"),
        *dense(f"{layer}.attn.c_attn", *fused, transposed=False),
        *dense(f"{layer}.attn.c_proj", f"{ours}/attention/out", transposed=False),
        *norm(f"{layer}.ln_2", f"{ours}/feed_forward_norm"),
        *dense(f"{layer}.mlp.c_fc", f"{ours}/feed_forward/up", transposed=False),
        *dense(f"{layer}.mlp.c_proj", f"{ours}/feed_forward/down", transposed=False),
    )


class Gpt2Family(Family):
    """GPT-2. The only setting of the initializer in `config.json` is the standard deviation."""

    kind = "gpt2"
    name = "GPT-2"
    base = models.DecoderConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 1, models.LearnedPositions(1)),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        initializer=models.InitializerConfig(shrink_residual=True),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 50257),
        Field("n_positions", "attention.position.length", 1024),
        Field("n_embd", "embedding.width", 768),
        Field("n_layer", "stack.layers", 12),
        Field("n_head", "attention.heads", 12),
        Derived("attention.head_dim", quotient("n_embd", "n_head")),
        Field("n_inner", "feed_forward.width", lambda fields: 4 * fields["n_embd"]),
        activation("activation_function", "gelu_new"),
        Field("resid_pdrop", "dropout.residual", 0.1),
        Field("embd_pdrop", "dropout.embedding", 0.1),
        Field("attn_pdrop", "dropout.attention", 0.1),
        Field("layer_norm_epsilon", "norm.epsilon", 1e-5),
        initializer_range("initializer_range", "attention.position.init_std"),
        Field("scale_attn_weights", "attention.score_scale", True, choices={True: None, False: 1.0}),
        Field("scale_attn_by_inverse_layer_idx", "attention.scale_by_inverse_depth", False),
        Fixed("add_cross_attention", False, is_written=False),
        Field("tie_word_embeddings", "head.tied", True),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.wte.weight", ("token_embedding",)),
        Tensor("transformer.wpe.weight", ("position_embedding",)),
        *blocks(),
        *norm("transformer.ln_f", "stack/final_norm"),
        Tensor("lm_head.weight", ("head",)),
    )
    buffers = r"h\.\d+\.attn\.(bias|masked_bias)"
    vocabulary_files = {"bpe": ("vocab.json", "merges.txt"), "sentencepiece": ("tokenizer.model",)}
    tasks = task_layouts(TaskLayout("score", {"feature": "last", "bias": False}, default=0.0))
    task_class = "GPT2"
    other_heads = r"score\.weight"

    @override
    def architecture(self, model):
        return "GPT2LMHeadModel"
