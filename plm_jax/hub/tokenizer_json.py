"""Special tokens in `tokenizer.json`, the vocabulary format of Hugging Face's `tokenizers`.

Directories that plm_jax writes may contain `tokenizer.json` in addition to the files from which plm_jax reads the
vocabulary. The field OURS of `tokenizer_config.json` names these files, for example as `sentencepiece:tokenizer.model`.
With this field, plm_jax reads the same vocabulary again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax.common import strict_json
from plm_jax.common.errors import UserError, one_line

SCHEME, NAME = "json", "tokenizer.json"
OURS = "plm_jax_vocabulary"
# transformers 5 uses the pipeline of the file for these classes. Other classes build their own from its tokens.
CLASS = "PreTrainedTokenizerFast"
CLASSES = (CLASS, "TokenizersBackend")
# Files of a vocabulary by scheme, for families that do not define other names.
FILES = {
    "sentencepiece": ("tokenizer.model",),
    "wordpiece": ("vocab.txt",),
    "bpe": ("vocab.json", "merges.txt"),
    "tiktoken": ("tokenizer.model",),
    SCHEME: (NAME,),
    "words": ("words.txt",),
    "bytes": (),
}
_SPECIALS = ("bos", "eos", "pad", "cls", "sep", "mask")


class Tokenizer(NamedTuple):
    """A tokenizer of `transformers`.

    Attributes:
      tree: contents of `tokenizer.json`.
      config: contents of `tokenizer_config.json`.
    """

    tree: Mapping[str, Any]
    config: Mapping[str, Any]


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns entries of `Pretrained.special_ids` that follow from the tokenizer's files.

    The entries are the ids of the special tokens that `tokenizer_config.json` names, the number of sentinels,
    `lowercase`, and the entries of `frame`.

    Args:
      files: contents of the vocabulary files; the first one is `tokenizer.json`.
      tokenizer_config: contents of `tokenizer_config.json`.

    Raises:
      UserError: `tokenizer.json` is damaged.
    """
    tree = parse(files)
    ids = {token["content"]: token["id"] for token in tree.get("added_tokens", ())}
    named = ((name, _content(tokenizer_config.get(f"{name}_token"))) for name in _SPECIALS)
    special = {f"{name}_token_id": ids[token] for name, token in named if token in ids}
    if sentinels := sum("<extra_id_" in token for token in ids):
        special["sentinels"] = sentinels
    if "do_lower_case" in tokenizer_config:
        special["lowercase"] = tokenizer_config["do_lower_case"]
    return special | frame(tree)


def returns_token_types(tokenizer_config: Mapping[str, Any]) -> bool:
    """Whether a tokenizer of transformers 5 returns token types for a pair of texts.

    The field `model_input_names` determines this. If the field is absent, the class of the tokenizer determines it.
    """
    names = tokenizer_config.get("model_input_names")
    return tokenizer_config.get("tokenizer_class") not in CLASSES if names is None else "token_type_ids" in names


def tokenizer_config(files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `tokenizer_config.json` for a `tokenizer.json`.

    The fields are a class that can read any `tokenizer.json`, and the special tokens.

    Args:
      files: contents of the vocabulary files; the first one is `tokenizer.json`.
      special_ids: `Pretrained.special_ids` of the model.
    """
    names = {token["id"]: token["content"] for token in parse(files).get("added_tokens", ())}
    ids = ((name, special_ids.get(f"{name}_token_id")) for name in _SPECIALS)
    ids = ((name, i[0] if isinstance(i, list | tuple) else i) for name, i in ids)
    named = {f"{name}_token": names[i] for name, i in ids if i in names}
    return {"tokenizer_class": CLASS, **named}


def parse(files: list[bytes]) -> dict[str, Any]:
    """Parses `tokenizer.json`.

    Args:
      files: contents of the vocabulary files; the first one is `tokenizer.json`.

    Raises:
      UserError: the file is damaged.
    """
    try:
        tree = strict_json.loads(files[0])
    except ValueError as error:
        raise UserError(f"{NAME} is damaged ({one_line(error)}): fetch it again") from error
    if not isinstance(tree, dict):
        raise UserError(f"{NAME} is damaged (it is not a JSON object): fetch it again")
    return tree


def _content(token: Any) -> str | None:
    """Returns the text of a token. The token is either this text or a mapping with the text and flags."""
    return token.get("content") if isinstance(token, Mapping) else token


def frame(tree: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the ids that a `tokenizer.json` adds to texts, as entries of `Pretrained.special_ids`.

    The entries are `begins_with` and `ends_with`, which may be empty, and `separates_with` if ids are added between the
    texts of a pair.
    """
    processor = tree.get("post_processor") or {}
    before, after, between = [], [], []
    for part in processor.get("processors", [processor]):
        if part.get("type") == "TemplateProcessing":
            ids = {name: token["ids"] for name, token in part["special_tokens"].items()}
            names, pair = (
                [piece.get("SpecialToken", {}).get("id") for piece in part.get(form, ())]  # None for a text.
                for form in ("single", "pair")
            )
            text = names.index(None)
            if pair.count(None) == 2:
                second = pair.index(None, pair.index(None) + 1)
                between = [i for name in pair[pair.index(None) + 1 : second] for i in ids[name]]
            before = [i for name in names[:text] for i in ids[name]] + before
            after += [i for name in names[text + 1 :] for i in ids[name]]
        elif part.get("type") in ("BertProcessing", "RobertaProcessing"):
            before, after = [part["cls"][1], *before], [*after, part["sep"][1]]
            between = [part["sep"][1]] * (2 if part["type"] == "RobertaProcessing" else 1)
    return {"begins_with": before, "ends_with": after} | ({"separates_with": between} if between else {})
