"""XLNet (Yang et al. 2019) in Hugging Face's format: `XLNetLMHeadModel` and `XLNetModel`.

The attention projections are stored with a separate axis for the heads. `XLNetForQuestionAnswering` is not supported,
because its head uses beam search.
"""

import warnings
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.hub import albert, bert
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm, task_layouts
from plm_jax.hub.fields import Derived, Entry, Field, Fixed, activation, check, initializer_range, quotient

# Special tokens in spiece.model.
PIECES = {"bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>", "pad": "<pad>", "mask": "<mask>"}
LAYER, BLOCKS = "transformer.layer.{layer}", "stack/blocks"


@dataclass(frozen=True)
class Length(Entry):
    """A field that holds a length. Null, 0 and negative numbers mean that there is no length.

    Attributes:
      name: name in `config.json`.
      path: dotted path of the setting.
      default: value that `transformers` assumes if the field is absent.
      without: value of the setting if there is no length.
      null: value that is written to `config.json` if there is no length.
    """

    name: str
    path: str
    default: int | None
    without: int | None
    null: int | None = None

    @override
    def values(self, config):
        value = config.get(self.name, self.default)
        check(self.name, value, value is None or (type(value) is int and value < 2**31), "an integer or null")
        return {self.name: value}

    @override
    def settings(self, values):
        value = values[self.name]
        return {self.path: self.without if value is None or value <= 0 else value}

    @override
    def fields(self, model, fields):
        return {self.name: self._length(model) or self.null}

    def _length(self, model: Any) -> int | None:
        for name in self.path.split("."):
            model = getattr(model, name, None)
        return model


def heads_of(model: models.TransformerConfig) -> tuple[int, ...]:
    """Returns the shape of XLNet's projections, [-1, heads, head_dim]. NumPy infers the first size."""
    return -1, model.attention.heads, model.attention.head_dim


def _projection(name, parameter, transposed=False):
    return Tensor(f"{LAYER}.rel_attn.{name}", (f"{BLOCKS}/attention/{parameter}",), transposed, shape=heads_of)


def _tables(**names):
    return tuple(Tensor(f"{LAYER}.rel_attn.{name}", (f"{BLOCKS}/attention/{ours}",)) for ours, name in names.items())


class XlnetFamily(Family):
    """XLNet. The defaults of the fields are those of `XLNetConfig`."""

    kind = "xlnet"
    name = "XLNet"
    base = models.XlnetConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 1, models.RelativeSinusoids(), bias=False),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        norm=models.NormConfig(placement="post"),
        head=models.VocabularyHead(bias=True),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 32000),
        Field("d_model", "embedding.width", 1024),
        Field("n_layer", "stack.layers", 24),
        Field("n_head", "attention.heads", 16),
        Derived("attention.head_dim", quotient("d_model", "n_head")),
        Field("d_inner", "feed_forward.width", 4096),
        activation("ff_activation", "gelu"),
        Field(
            "dropout",
            "dropout.residual",
            0.1,
            also=("dropout.embedding", "dropout.attention", "dropout.feed_forward", "dropout.output"),
        ),
        Field("attn_type", "causal", "bi", choices={"bi": False, "uni": True}),
        Length("mem_len", "memory_length", 512, without=0),
        Length("reuse_len", "reuse_length", None, without=0),
        Field("bi_data", "reverses_half", False),
        Length("clamp_len", "attention.position.clamp", -1, without=None, null=-1),
        initializer_range("initializer_range"),
        Field("layer_norm_eps", "norm.epsilon", 1e-12),
        bert.TIED,
        Fixed("same_length", False, is_written=False),
        Fixed("untie_r", True, is_written=False),
        Fixed("summary_type", "last", is_written=False),
        Fixed("summary_use_proj", True, is_written=False),
        Fixed("summary_activation", "tanh", is_written=False),
        Fixed("summary_proj_to_labels", False, is_written=False),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.word_embedding.weight", ("token_embedding",)),
        Tensor("transformer.mask_emb", ("query_embedding",), shape=lambda model: (1, 1, -1)),
        _projection("q", "query/kernel"),
        _projection("k", "key/kernel"),
        _projection("v", "value/kernel"),
        _projection("o", "out/kernel", transposed=True),
        _projection("r", "distance"),
        *_tables(content_bias="r_w_bias", distance_bias="r_r_bias", segment_bias="r_s_bias", segment="seg_embed"),
        *norm(f"{LAYER}.rel_attn.layer_norm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.ff.layer_1", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.ff.layer_2", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.ff.layer_norm", f"{BLOCKS}/feed_forward_norm"),
        Tensor("lm_loss.weight", ("head",)),
        Tensor("lm_loss.bias", ("head_bias",)),
    )
    vocabulary_files = {"sentencepiece": ("spiece.model",)}
    tokenizer_class = "XLNetTokenizer"
    tasks = task_layouts(
        TaskLayout(
            "logits_proj",
            {"feature": "last", "transform": "tanh"},
            "sequence_summary.summary",
            rate="summary_last_dropout",
            default=0.1,
        ),
        tags=TaskLayout("classifier"),
        span=TaskLayout("qa_outputs", default=0.0, form="ForQuestionAnsweringSimple"),
    )
    # A choice has the layout of a text.
    tasks["choice"] = tasks["classes"]
    task_class = "XLNet"
    other_heads = r"(sequence_summary|logits_proj|classifier|qa_outputs|start_logits|end_logits|answer_class)\..*"

    @override
    def architecture(self, model):
        return "XLNetLMHeadModel" if bert.has_head(model) else "XLNetModel"

    @override
    def tokenizer_config(self, files, special_ids):
        lower = special_ids.get("lowercase", False)
        described = super().tokenizer_config(files, special_ids) | {"padding_side": "left"}
        return described | {"do_lower_case": lower, "keep_accents": not lower}

    @override
    def special_ids(self, files, tokenizer_config):
        ids, lower = albert.piece_ids(files), bool(tokenizer_config.get("do_lower_case", False))
        if not lower and not tokenizer_config.get("keep_accents", False):
            warnings.warn(
                "transformers removes the accents from text for XLNet, but plm_jax keeps them in a cased vocabulary: "
                "letters with accents get other ids",
                stacklevel=2,
            )
        special_ids = {f"{name}_token_id": ids[piece] for name, piece in PIECES.items() if piece in ids}
        return special_ids | {"lowercase": lower}
