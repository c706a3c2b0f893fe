"""ALBERT (Lan et al. 2020) in Hugging Face's format: `AlbertForPreTraining` and classes that lack some of its heads.

The embedding tables are narrower than the layers. The layers have the structure of BERT's layers, but other tensor
names. The layers of a group share their parameters.
"""

import warnings
from dataclasses import replace

from typing_extensions import override

from plm_jax.common import sentence_models
from plm_jax.common.errors import UserError
from plm_jax.hub import bert
from plm_jax.hub.family import Family, attention, dense, norm, unembedding
from plm_jax.hub.fields import Field, changed

LAYER, BLOCKS = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}", "stack/blocks"


class AlbertFamily(Family):
    """ALBERT."""

    kind = "albert"
    name = "ALBERT"
    base = replace(bert.BASE, embedding=replace(bert.BASE.embedding, embedding_size=1))
    fields = changed(
        bert.BertFamily.fields,
        Field("embedding_size", "embedding.embedding_size", 128, write=lambda model: model.embedding.columns),
        Field("num_hidden_groups", "stack.groups", 1, same_as="num_hidden_layers", divides="num_hidden_layers"),
        Field("inner_group_num", "stack.inner", 1),
        vocab_size=30000,
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    prefix = "albert."
    tensors = (
        *bert.embeddings("albert"),
        *dense("albert.encoder.embedding_hidden_mapping_in", "embedding_projection"),
        *attention(f"{LAYER}.attention", f"{BLOCKS}/attention", "query", "key", "value", "dense"),
        *norm(f"{LAYER}.attention.LayerNorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.ffn", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.ffn_output", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.full_layer_layer_norm", f"{BLOCKS}/feed_forward_norm"),
        *dense("albert.pooler", "pooler"),
        *dense("sop_classifier.classifier", "classifier"),
        *dense("predictions.dense", "head_transform"),
        *norm("predictions.LayerNorm", "head_norm"),
        *unembedding("predictions"),
    )
    buffers = bert.BUFFERS
    copies = {"predictions.decoder.bias": "predictions.bias"}
    # Chinese models have a vocab.txt.
    vocabulary_files = {"sentencepiece": ("spiece.model",), "wordpiece": ("vocab.txt",)}
    tokenizer_class = "AlbertTokenizer"
    # `transformers` has another default of this rate for ALBERT.
    tasks = {
        kind: layout if kind == "span" else replace(layout, default=0.1)
        for kind, layout in bert.encoder_tasks("classifier_dropout_prob").items()
    }
    task_class = "Albert"
    other_heads = bert.OTHER_HEADS

    @override
    def architecture(self, model):
        if not bert.has_head(model):
            return "AlbertModel"
        return "AlbertForPreTraining" if bert.classifies_pairs(model) else "AlbertForMaskedLM"

    @override
    def tokenizer_config(self, files, special_ids):
        if _is_wordpiece(files):
            return bert.BertFamily().tokenizer_config(files, special_ids)
        lower = special_ids.get("lowercase", _is_uncased(files))
        return super().tokenizer_config(files, special_ids) | {"do_lower_case": lower, "keep_accents": not lower}

    @override
    def special_ids(self, files, tokenizer_config):
        if _is_wordpiece(files):
            return bert.BertFamily().special_ids(files, tokenizer_config)
        ids = piece_ids(files)
        lower, keeps_accents = tokenizer_config.get("do_lower_case"), tokenizer_config.get("keep_accents")
        lower = _is_uncased(files) if lower is None else bool(lower)
        if lower and keeps_accents:
            raise UserError(
                "tokenizer_config.json has keep_accents with do_lower_case: set keep_accents to false (letters with "
                "accents then get other ids)"
            )
        if not lower and keeps_accents is False:
            warnings.warn(
                "tokenizer_config.json has neither do_lower_case nor keep_accents: plm_jax keeps the accents of a "
                "cased vocabulary, so letters with accents get other ids than in transformers",
                stacklevel=2,
            )
        special_ids = {f"{name}_token_id": ids[symbol] for name, symbol in bert.SYMBOLS.items() if symbol in ids}
        return special_ids | {"lowercase": lower}


def piece_ids(files: list[bytes]) -> dict[str, int]:
    """Returns a dict from the pieces of a SentencePiece model to their ids.

    Args:
      files: contents of the vocabulary files; the first one is the SentencePiece model.

    Raises:
      UserError: the SentencePiece model is damaged.
    """
    return {piece.piece: i for i, piece in enumerate(_pieces(files))}


def _is_wordpiece(files: list[bytes]) -> bool:
    """Whether the vocabulary is a vocab.txt, not a spiece.model."""
    return b"[CLS]" in files[0].splitlines()


def _is_uncased(files: list[bytes]) -> bool:
    """Whether no piece of type NORMAL contains an upper-case letter."""
    return all(piece.piece == piece.piece.lower() for piece in _pieces(files) if piece.type == piece.NORMAL)


def _pieces(files: list[bytes]):
    try:
        return sentence_models.parse(files[0]).pieces
    except ValueError as error:
        raise UserError(f"the SentencePiece model is damaged ({error}): fetch it again") from error
