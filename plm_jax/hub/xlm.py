"""XLM (Conneau & Lample 2019) in Hugging Face's format: `XLMWithLMHeadModel` and `XLMModel`.

The model is a BERT without a pooler, without a head transform, and without token types that distinguish texts. The
tensors have other names. The token type of a token is the id of its language. `transformers` calls these ids `langs`.
If `langs` is absent, `transformers` adds no language embedding, whereas models of this package add the embedding of
language 0.
"""

from dataclasses import replace

from typing_extensions import override

from plm_jax import models
from plm_jax.hub import bert
from plm_jax.hub.family import Family, TaskLayout, Tensor, attention, dense, norm, task_layouts
from plm_jax.hub.fields import Derived, Entry, Field, Fixed, check_size, quotient

BLOCKS = "stack/blocks"


class Languages(Entry):
    """Number of languages.

    A model has no language embeddings if it has only one language or if `use_lang_emb` is false.
    """

    name = "n_langs"

    @override
    def values(self, config):
        languages = config.get(self.name, 1)
        check_size(self.name, languages)
        return {self.name: languages, "use_lang_emb": bool(config.get("use_lang_emb", True))}

    @override
    def settings(self, values):
        languages = values[self.name] if values["use_lang_emb"] else 1
        return {"embedding.token_types": languages if languages > 1 else 0}

    @override
    def fields(self, model, fields):
        return {self.name: max(1, model.embedding.token_types), "use_lang_emb": True}


class XlmFamily(Family):
    """XLM. The defaults of the fields are those of `XLMConfig`."""

    kind = "xlm"
    name = "XLM"
    base = replace(
        bert.BASE,
        head=models.VocabularyHead(bias=True),
        pooler=models.NoHead(),
        initializer=models.InitializerConfig(),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 30145),
        Field("emb_dim", "embedding.width", 2048),
        Derived("feed_forward.width", lambda values: 4 * values["emb_dim"]),
        Field("n_layers", "stack.layers", 12),
        Field("n_heads", "attention.heads", 16),
        Derived("attention.head_dim", quotient("emb_dim", "n_heads")),
        Field("dropout", "dropout.residual", 0.1, also=("dropout.embedding",)),
        Field("attention_dropout", "dropout.attention", 0.1),
        Field("gelu_activation", "feed_forward.activation", True, choices={True: "gelu_exact", False: "relu"}),
        Languages(),
        Field("max_position_embeddings", "attention.position.length", 512),
        Field("embed_init_std", "attention.position.init_std", 2048**-0.5),
        Field("init_std", "initializer.std", 0.02),
        Field("layer_norm_eps", "norm.epsilon", 1e-12),
        bert.TIED,
        Fixed("sinusoidal_embeddings", False),
        Fixed("causal", False),
        Fixed("asm", False),
        Fixed("is_encoder", True),
        Fixed("summary_type", "first", is_written=False),
        Fixed("summary_use_proj", True, is_written=False),
        Fixed("summary_activation", None, is_written=False),
        Fixed("summary_proj_to_labels", True, is_written=False),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.embeddings.weight", ("token_embedding",)),
        Tensor("transformer.position_embeddings.weight", ("position_embedding",)),
        Tensor("transformer.lang_embeddings.weight", ("token_type_embedding",)),
        *norm("transformer.layer_norm_emb", "embedding_norm"),
        *attention("transformer.attentions.{layer}", f"{BLOCKS}/attention", "q_lin", "k_lin", "v_lin", "out_lin"),
        *norm("transformer.layer_norm1.{layer}", f"{BLOCKS}/attention_norm"),
        *dense("transformer.ffns.{layer}.lin1", f"{BLOCKS}/feed_forward/up"),
        *dense("transformer.ffns.{layer}.lin2", f"{BLOCKS}/feed_forward/down"),
        *norm("transformer.layer_norm2.{layer}", f"{BLOCKS}/feed_forward_norm"),
        Tensor("pred_layer.proj.weight", ("head",)),
        Tensor("pred_layer.proj.bias", ("head_bias",)),
    )
    buffers = "position_ids"
    unsupported_vocabulary = ("vocab.json", "merges.txt")  # Moses, or a segmenter of the language, and BPE with `</w>`.
    token_types_are_of_texts = False
    ids = {
        "bos_token_id": "bos_index",
        "eos_token_id": "eos_index",
        "pad_token_id": "pad_index",
        "unk_token_id": "unk_index",
        "mask_token_id": "mask_index",
    }
    tasks = task_layouts(
        TaskLayout("sequence_summary.summary", {"feature": "first"}, rate="summary_first_dropout", default=0.1),
        tags=TaskLayout("classifier"),
        span=TaskLayout("qa_outputs", default=0.0, form="ForQuestionAnsweringSimple"),
    )
    task_class = "XLM"
    other_heads = r"(sequence_summary|classifier|logits_proj|qa_outputs)\..*"

    @override
    def to_settings(self, config):
        # The old name, in files of transformers 4 and of the published models. transformers prefers it to the new name.
        if "n_words" in config:
            config = {**config, "vocab_size": config["n_words"]}
        return super().to_settings(config)

    @override
    def architecture(self, model):
        return "XLMWithLMHeadModel" if bert.has_head(model) else "XLMModel"
