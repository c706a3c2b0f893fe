"""EuroBERT (Boizard et al. 2025) in Hugging Face's format: a LLaMA with bidirectional attention."""

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.bert import has_head
from plm_jax.hub.family import TaskLayout, Tensor, task_layouts
from plm_jax.hub.fields import Field, changed
from plm_jax.hub.llama import LlamaFamily

POOLING = Field("classifier_pooling", "feature", "late", choices={"late": "late", "mean": "mean", "bos": "first"})
TEXT = TaskLayout(
    "classifier", {"feature": "late", "transform": "gelu_exact"}, "dense", default=0.0, entries=(POOLING,)
)


class EuroBertFamily(LlamaFamily):
    """EuroBERT. The vocabulary head has a bias if the feed-forward layers have one."""

    kind = "eurobert"
    name = "EuroBERT"
    base = models.EncoderConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=LlamaFamily.base.attention,
        feed_forward=LlamaFamily.base.feed_forward,
        stack=models.StackConfig(1),
        norm=LlamaFamily.base.norm,
        head=models.VocabularyHead(),
    )
    fields = changed(
        LlamaFamily.fields,
        Field("mlp_bias", "feed_forward.bias", False, also=("head.bias",)),
        vocab_size=128256,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
    )
    tensors = (*LlamaFamily.tensors, Tensor("lm_head.bias", ("head_bias",)))
    ids = {"mask": "mask_token_id"}
    tasks = task_layouts(TEXT, TaskLayout("classifier", default=0.0))
    task_class = "EuroBert"
    other_heads = r"(dense|classifier)\..*"

    @override
    def architecture(self, model):
        return f"EuroBert{'ForMaskedLM' if has_head(model) else 'Model'}"
