"""RoBERTa (Liu et al. 2019) in Hugging Face's format: `RobertaForMaskedLM` and `RobertaModel`.

The layers have the structure and the tensor names of BERT's layers. Padding tokens are not counted as positions. In the
position table, the index of the first position's row is the id of the padding token + 1.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import override

from plm_jax import models
from plm_jax.common import strict_json
from plm_jax.common.errors import UserError, one_line
from plm_jax.hub import bert
from plm_jax.hub.family import Family, TaskLayout, dense, norm, unembedding
from plm_jax.hub.fields import Entry, activation, changed, check, check_size

LENGTH = 512


@dataclass(frozen=True)
class PositionsAfterPadding(Entry):
    """Number of rows of the position table, and id of the padding token.

    Rows with an index up to this id are unused.

    Attributes:
      default: number of rows that `transformers` assumes if `max_position_embeddings` is absent.
    """

    name: ClassVar[str] = "max_position_embeddings"
    default: int = LENGTH

    @override
    def values(self, config):
        rows, pad = config.get(self.name, self.default), config.get("pad_token_id", 1)
        check_size(self.name, rows)
        check("pad_token_id", pad, type(pad) is int and 0 <= pad < rows - 1, f"an id from 0 to {rows - 2}")
        return {self.name: rows, "pad_token_id": pad}

    @override
    def settings(self, values):
        offset = values["pad_token_id"] + 1
        return {"attention.position.length": values[self.name] - offset, "attention.position.offset": offset}

    @override
    def fields(self, model, fields):
        position = model.attention.position
        offset = max(1, getattr(position, "offset", 1))
        return {self.name: getattr(position, "length", LENGTH) + offset, "pad_token_id": offset - 1}


def special_ids(files: list[bytes]) -> dict[str, Any]:
    """Returns a dict with the id of the mask token. The dict is empty if `vocab.json` has no mask token.

    The ids of the tokens around a text are in `config.json` and are not returned.

    Args:
      files: contents of the vocabulary files; the first one is `vocab.json`.

    Raises:
      UserError: `vocab.json` is damaged.
    """
    try:
        ids = strict_json.loads(files[0])
    except ValueError as error:
        raise UserError(f"vocab.json is damaged ({one_line(error)}): fetch it again") from error
    return {"mask_token_id": ids["<mask>"]} if "<mask>" in ids else {}


# Tensors after the stack.
HEADS = (
    *dense("roberta.pooler.dense", "pooler"),
    *dense("lm_head.dense", "head_transform"),
    *norm("lm_head.layer_norm", "head_norm"),
    *unembedding("lm_head"),
)


class RobertaFamily(Family):
    """RoBERTa. The masked LM head always uses the exact GELU, even if the layers use another activation."""

    kind = "roberta"
    name = "RoBERTa"
    base = replace(
        bert.BASE,
        attention=replace(bert.BASE.attention, position=models.LearnedPositions(1, skips_padding=True)),
        initializer=models.InitializerConfig(),
    )
    fields = changed(
        bert.BertFamily.fields, activation("hidden_act", "gelu"), PositionsAfterPadding(), vocab_size=50265
    )
    prefix = "roberta."
    tensors = (*bert.embeddings("roberta"), *bert.layers("roberta"), *HEADS)
    buffers = bert.BUFFERS
    copies = {"lm_head.decoder.bias": "lm_head.bias"}
    vocabulary_files = {"bpe": ("vocab.json", "merges.txt")}
    tokenizer_class = "RobertaTokenizer"
    tasks = bert.encoder_tasks(
        "classifier_dropout",
        bert.transformed("tanh", "classifier_dropout"),
        choice=TaskLayout("classifier", {"feature": "pooler"}),
    )
    task_class = "Roberta"
    other_heads = bert.OTHER_HEADS

    @override
    def architecture(self, model):
        return f"{self.task_class}{'ForMaskedLM' if bert.has_head(model) else 'Model'}"

    @override
    def special_ids(self, files, tokenizer_config):
        return special_ids(files)
