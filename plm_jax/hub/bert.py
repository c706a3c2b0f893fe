"""BERT (Devlin et al. 2019) in Hugging Face's format: `BertForPreTraining` and classes that lack some of its heads.

Dense layers are torch's `Linear`, stored [out, in].
"""

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from plm_jax import models
from plm_jax.common import wordpiece
from plm_jax.hub.family import Family, TaskLayout, Tensor, attention, dense, norm, task_layouts, unembedding
from plm_jax.hub.fields import Derived, Field, Fixed, activation, initializer_range, quotient


def embeddings(prefix: str) -> tuple[Tensor, ...]:
    """Returns the tensors of the embedding tables, with the names of BERT after the prefix."""
    return (
        Tensor(f"{prefix}.embeddings.word_embeddings.weight", ("token_embedding",)),
        Tensor(f"{prefix}.embeddings.position_embeddings.weight", ("position_embedding",)),
        Tensor(f"{prefix}.embeddings.token_type_embeddings.weight", ("token_type_embedding",)),
        *norm(f"{prefix}.embeddings.LayerNorm", "embedding_norm"),
    )


def layers(
    prefix: str, attention_norm: str = "attention.output.LayerNorm", feed_forward_norm: str = "output.LayerNorm"
) -> tuple[Tensor, ...]:
    """Returns the tensors of the blocks, with the names of BERT after the prefix.

    Args:
      prefix: first part of the tensor names.
      attention_norm: name of the norm of the attention in a layer.
      feed_forward_norm: name of the norm of the feed-forward in a layer.
    """
    layer, blocks = f"{prefix}.encoder.layer.{{layer}}", "stack/blocks"
    return (
        *attention(f"{layer}.attention", f"{blocks}/attention", "self.query", "self.key", "self.value", "output.dense"),
        *norm(f"{layer}.{attention_norm}", f"{blocks}/attention_norm"),
        *dense(f"{layer}.intermediate.dense", f"{blocks}/feed_forward/up"),
        *dense(f"{layer}.output.dense", f"{blocks}/feed_forward/down"),
        *norm(f"{layer}.{feed_forward_norm}", f"{blocks}/feed_forward_norm"),
    )


def encoder_tensors(prefix: str) -> tuple[Tensor, ...]:
    """Returns the tensors of a model with a masked LM head and a pair classifier.

    The names are those of BERT, with `prefix` in place of `bert`.
    """
    return (
        *embeddings(prefix),
        *layers(prefix),
        *dense(f"{prefix}.pooler.dense", "pooler"),
        *dense("cls.seq_relationship", "classifier"),
        *dense("cls.predictions.transform.dense", "head_transform"),
        *norm("cls.predictions.transform.LayerNorm", "head_norm"),
        *unembedding("cls.predictions"),
    )


BUFFERS = r"embeddings\.(position_ids|token_type_ids)"
OTHER_HEADS = r"(pre_classifier|classifier|qa_outputs|sequence_summary)\..*"


def encoder_tasks(rate: str, text: TaskLayout | None = None, **layouts: TaskLayout) -> dict[str, TaskLayout]:
    """Returns the layouts of the task heads of an encoder, by kind of the head.

    Args:
      rate: field of `config.json` that contains the dropout rate of the heads. By default, the head for spans has no
        dropout.
      text: layout of the heads that read a whole text. By default, these heads have one dense layer that reads the
        pooler.
      layouts: layouts that replace the defaults, by kind of the head.
    """
    pooled = TaskLayout("classifier", {"feature": "pooler"}, rate=rate)
    tags, span = TaskLayout("classifier", rate=rate), TaskLayout("qa_outputs", default=0.0)
    return task_layouts(text or pooled, **{"tags": tags, "span": span, "choice": pooled} | layouts)


def transformed(activation: str, rate: str) -> TaskLayout:
    """Returns the layout of a head that first applies a dense layer to the hidden state of the first token.

    Args:
      activation: activation of this layer.
      rate: field of `config.json` that contains the dropout rate.
    """
    fields = {"feature": "first", "transform": activation}
    return TaskLayout("classifier.out_proj", fields, "classifier.dense", rate, drops_input=True)


# Settings that BERT and its variants have in common. Fields of `config.json` set the sizes.
BASE = models.EncoderConfig(
    embedding=models.EmbeddingConfig(1, 1, norm=True),
    attention=models.AttentionConfig(1, 1, models.LearnedPositions(1)),
    feed_forward=models.FeedForwardConfig(1),
    stack=models.StackConfig(1),
    norm=models.NormConfig(1e-12, placement="post"),
    head=models.VocabularyHead(transform="gelu_exact", bias=True),
    pooler=models.Pooler(),
    initializer=models.InitializerConfig(truncated=True),
)


def has_head(model: models.EncoderConfig) -> bool:
    """Whether an encoder has a vocabulary head."""
    return isinstance(model.head, models.VocabularyHead)


def classifies_pairs(model: models.EncoderConfig) -> bool:
    """Whether an encoder has a head that classifies pairs of sentences."""
    return isinstance(model.pooler, models.Pooler) and model.pooler.classes > 0


TIED = Field("tie_word_embeddings", "head.tied", True, write=lambda model: not has_head(model) or model.head.tied)
SYMBOLS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class WordPieceFamily(Family):
    """Base of the families whose vocabulary has the format of BERT's `vocab.txt`.

    Attributes:
      symbols: mapping from names of special tokens, such as `cls`, to their texts in the file.
    """

    symbols: ClassVar[Mapping[str, str]] = SYMBOLS
    vocabulary_files = {"wordpiece": ("vocab.txt",)}
    tokenizer_class = "BertTokenizer"

    @override
    def tokenizer_config(self, files, special_ids):
        # The vocabulary alone does not always show whether text is lower-cased.
        uncased = wordpiece.is_uncased(wordpiece.read(files[0]))
        return super().tokenizer_config(files, special_ids) | {"do_lower_case": special_ids.get("lowercase", uncased)}

    @override
    def special_ids(self, files, tokenizer_config):
        tokens = wordpiece.read(files[0])
        ids = {token: i for i, token in enumerate(tokens)}
        special_ids = {f"{name}_token_id": ids[symbol] for name, symbol in self.symbols.items() if symbol in ids}
        return special_ids | {"lowercase": bool(tokenizer_config.get("do_lower_case", wordpiece.is_uncased(tokens)))}


class BertFamily(WordPieceFamily):
    """BERT."""

    kind = "bert"
    name = "BERT"
    base = BASE
    fields = (
        Field("vocab_size", "embedding.vocab_size", 30522),
        Field("hidden_size", "embedding.width", 768),
        Field("num_hidden_layers", "stack.layers", 12),
        Field("num_attention_heads", "attention.heads", 12),
        Derived("attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        Field("intermediate_size", "feed_forward.width", 3072),
        activation("hidden_act", "gelu", "head.transform"),
        Field("hidden_dropout_prob", "dropout.residual", 0.1, also=("dropout.embedding",)),
        Field("attention_probs_dropout_prob", "dropout.attention", 0.1),
        Field("max_position_embeddings", "attention.position.length", 512),
        Field("type_vocab_size", "embedding.token_types", 2, write=lambda model: max(1, model.embedding.token_types)),
        initializer_range("initializer_range", "attention.position.init_std"),
        Field("layer_norm_eps", "norm.epsilon", 1e-12),
        TIED,
        Fixed("is_decoder", False, is_written=False),
        Fixed("position_embedding_type", "absolute", is_written=False),
    )
    prefix = "bert."
    tensors = encoder_tensors("bert")
    buffers = BUFFERS
    copies = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    old_endings = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    tasks = encoder_tasks("classifier_dropout")
    task_class = "Bert"
    other_heads = OTHER_HEADS

    @override
    def architecture(self, model):
        if has_head(model):
            return f"{self.task_class}{'ForPreTraining' if classifies_pairs(model) else 'ForMaskedLM'}"
        return f"{self.task_class}{'ForNextSentencePrediction' if classifies_pairs(model) else 'Model'}"
