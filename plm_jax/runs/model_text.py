"""Text as a model reads it: vocabulary, special tokens around a text, and tokenizer files for Hugging Face."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from plm_jax import config, objectives
from plm_jax.common import special_ids
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import exported
from plm_jax.generation.text_format import MissingVocabularyError
from plm_jax.hub import families, hub_files, tokenizer_json
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models.protocol import ModelConfig


def vocabulary(pretrained: Pretrained, in_seqio: bool = False) -> vocabularies.Vocabulary:
    """Returns the vocabulary of a model.

    Its settings come from the run of the model or, without a run, from the vocabulary files and the special ids.
    Special ids beyond the size of the vocabulary file become added tokens, but not ids for which the model has no
    embedding.

    Args:
      in_seqio: whether the result is also a `seqio.Vocabulary`; this imports TensorFlow, which takes seconds.

    Raises:
      MissingVocabularyError: the model has no vocabulary.
      UserError: the vocabulary has more tokens than the model, the model was trained with another vocabulary, or a file
        is missing or damaged.
    """
    if pretrained.vocabulary is None:
        raise MissingVocabularyError
    load = vocabularies.load if in_seqio else vocabularies.load_plain
    section = _section(pretrained)
    loaded, size = load(section), pretrained.model.vocab_size
    trained_with = pretrained.vocabulary_id if pretrained.run is not None else None
    if trained_with is not None and (identity := vocabularies.identity(loaded)) != trained_with:
        raise UserError(
            f"{pretrained.vocabulary} is the vocabulary {identity[:12]}, but the model was trained with "
            f"{trained_with[:12]}: put the files of that vocabulary there"
        )
    above = [i for i in _ids(pretrained.special_ids) if i < size]
    if (lacking := max(above, default=-1) + 1 - (loaded.vocab_size - loaded.extra_ids)) > 0:
        loaded = load(dataclasses.replace(section, added=section.added + lacking))
    if loaded.vocab_size > size:
        raise UserError(
            f"the vocabulary {pretrained.vocabulary} has {loaded.vocab_size} tokens, the model {size}: "
            "use the vocabulary that the model was trained with"
        )
    return loaded


def _section(pretrained: Pretrained) -> config.VocabularyConfig:
    """Returns the vocabulary settings of a model; they have no special ids if the model does not come from a run."""
    special, run = pretrained.special_ids, pretrained.run
    if run is not None:
        return dataclasses.replace(run.vocabulary, spec=pretrained.vocabulary)
    lowercase = special.get("lowercase")
    section = config.VocabularyConfig(pretrained.vocabulary or "", sentinels=special.get("sentinels", 0))
    if section.spec.startswith("sentencepiece:"):
        return dataclasses.replace(section, lowercase=bool(lowercase))
    return dataclasses.replace(section, train_kind="" if lowercase is None else "uncased" if lowercase else "cased")


def section(pretrained: Pretrained) -> config.VocabularyConfig:
    """Returns the vocabulary settings of a run that continues to train a model.

    Raises:
      UserError: for the same reasons as `vocabulary`.
    """
    settings = _section(pretrained)
    if pretrained.run is not None:
        return settings
    size, ids = vocabulary(pretrained).vocab_size, _by_name(pretrained.special_ids)
    if len(pretrained.special_ids.get("separates_with", ())) == 2:
        # RoBERTa's tokenizer uses the bos id as cls and the eos id as sep. Keeping cls and sep would select BERT's row
        # format.
        ids = {
            name: i for name, i in ids.items() if (name, i) not in (("cls", ids.get("bos")), ("sep", ids.get("eos")))
        }
    return with_ids(settings, {name: i for name, i in ids.items() if i < size})


def with_ids(section: config.VocabularyConfig, ids: Mapping[str, int]) -> config.VocabularyConfig:
    """Returns vocabulary settings with the special ids `ids`.

    Ids beyond the vocabulary's size become added tokens, except in the vocabulary of bytes.
    """
    if section.spec != "bytes":  # The vocabulary of bytes has as many ids as needed.
        room = vocabularies.load_plain(section).vocab_size - section.sentinels
        section = dataclasses.replace(section, added=section.added + max(0, max(ids.values(), default=-1) + 1 - room))
    return dataclasses.replace(section, **ids)


def frame(model: ModelConfig, ids: Mapping[str, Any], run: config.Run | None) -> tuple[list[int], list[int]]:
    """Returns the special ids that preceded and followed a text when the model was trained.

    If `ids` has the entry `ends_with`, the result comes from `ids`. Otherwise, it comes from the row format of the run
    or, without a run, from the row format of published models.

    Args:
      ids: `Pretrained.special_ids` of the model.

    Returns:
      A pair: the ids before a text, and the ids after it.
    """
    if "ends_with" in ids:
        return begins_with(ids), list(ids["ends_with"])
    known = _by_name(ids)

    def first(*names: str) -> list[int]:
        return next(([known[name]] for name in names if name in known), [])

    if row_format := _row_format(model, known, run):
        return list(row_format.before), list(row_format.after)
    if model.architecture == "decoder":
        fills_blanks = run is None or run.objective.fills_blanks
        if fills_blanks and "sop" in known and "eop" in known:  # As THUDM/GLM has it; ChatGLM-6B has no cls.
            return first("cls"), first("eos") if "cls" in known else []
        return begins_with(ids), []
    if model.has_decoder:
        begins = run is None or run.objective.frames
        return first("bos") if begins else [], first("eos")
    if run is not None and run.data.layout.kind == "blocks" and not run.data.layout.num_texts:
        return [], []
    return first("cls", "bos"), first("sep", "eos")


def unframed(pretrained: Pretrained) -> list[str]:
    """Returns the names of an encoder's special tokens, such as `cls`, if its run trained it on texts without any.

    The result is empty for other models and for models without a run.
    """
    run, ids = pretrained.run, _by_name(pretrained.special_ids)
    if run is None or pretrained.model.has_decoder or pretrained.model.architecture not in ("encoder", "electra"):
        return []
    if any(frame(pretrained.model, pretrained.special_ids, run)):
        return []
    return [name for name in ("cls", "bos", "sep", "eos") if name in ids]


def _row_format(model: ModelConfig, ids: Mapping[str, int], run: config.Run | None) -> objectives.RowFormat | None:
    """Returns the special tokens around texts if the run or the model determines them, otherwise None.

    The run determines them if its examples are labeled. The model determines them if it is an XLNet.

    Args:
      ids: special ids by name, as `_by_name` returns them.
    """
    if run is not None and isinstance(run.objective, objectives.LabeledObjective):
        return run.objective.row_format(objectives.Special.of(run.vocabulary))
    if model.architecture == "xlnet" and {"sep", "cls"} <= ids.keys():
        return objectives.RowFormat.xlnet(ids["sep"], ids["cls"])
    return None


def begins_with(ids: Mapping[str, Any]) -> list[int]:
    """Returns the ids at the beginning of every text; empty if there are none.

    Args:
      ids: `Pretrained.special_ids` of the model.
    """
    bos = _by_name(ids).get("bos") if ids.get("begins_with_bos") else None
    return list(ids.get("begins_with", [] if bos is None else [bos]))


def tokenizer(pretrained: Pretrained) -> tokenizer_json.Tokenizer | None:
    """Returns tokenizer files with which Hugging Face's libraries produce the ids of a model.

    Special tokens are put around texts as in training, and between the texts of a pair as in the original models.

    Returns:
      Tokenizer files, or None if the model has no vocabulary or already has tokenizer files.

    Raises:
      UserError: for the same reasons as `vocabulary`, or if tokenizer files cannot reproduce the vocabulary; the
        message then quotes a text for which the ids differ.
    """
    if pretrained.vocabulary is None or hub_files.has_tokenizer(pretrained.hub_files):
        return None
    model, ids = families.published(pretrained.model)[0], _by_name(pretrained.special_ids)
    before, after = frame(model, pretrained.special_ids, pretrained.run)
    # The files of ChatGLM2 have no other special ids.
    if before == pretrained.special_ids.get("begins_with") and len(before) == 2:
        ids = {"gmask": before[0], "sop": before[1]} | ids
    row_format = _row_format(model, ids, pretrained.run)
    between = list(row_format.between) if row_format else after * 2 if before == [ids.get("bos")] else after
    types = model.token_types > 1 and (row_format is None or row_format.has_types)
    if types:
        headless = dataclasses.replace(model, heads=())
        types = families.family_of(headless, pretrained.family).token_types_are_of_texts
    is_theirs = pretrained.run is None and pretrained.vocabulary.startswith(tokenizer_json.SCHEME)
    last_type = row_format.last_type if row_format and types else None
    around = exported.Frame(before, between or before, after, types, last_type)
    tree, described = exported.export(vocabulary(pretrained), ids, None if is_theirs else around)
    described["model_input_names"] = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    if model.max_length is not None:
        described["model_max_length"] = model.max_length
    return tokenizer_json.Tokenizer(tree, described)


def _by_name(ids: Mapping[str, Any]) -> dict[str, int]:
    """Returns the special ids by name, without the suffix `_token_id`; if a name has several ids, the first one."""
    by_name = {name: ids.get(f"{name}_token_id") for name in special_ids.NAMES}
    by_name = {name: i[0] if isinstance(i, list | tuple) and i else i for name, i in by_name.items()}
    return {name: i for name, i in by_name.items() if isinstance(i, int)}


def _ids(ids: Mapping[str, Any]) -> list[int]:
    """Returns the ids in the entries `NAME_token_id`, `begins_with` and `ends_with`."""
    values = (i for name, i in ids.items() if name.endswith("_token_id") or name in ("begins_with", "ends_with"))
    return [i for value in values for i in (value if isinstance(value, list | tuple) else [value])]
