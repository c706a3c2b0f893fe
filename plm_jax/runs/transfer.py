"""Configs whose model comes from a checkpoint: `pretrain --from=SRC`, `finetune --checkpoint=SRC`.

The model, the vocabulary and the special ids come from SRC. Other settings come from the config, including dropout and
the settings that affect only speed and memory (`scan_layers`, `remat`, `attention_kernel`, `pipeline_microbatches`).
Nothing here reads a weight.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence

from plm_jax import config, losses, models, objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.generation.text_format import MissingVocabularyError
from plm_jax.hub import families, repositories, tasks
from plm_jax.hub.family import Family
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models.heads import TASK, NoHead, Pooler, Softmax, VocabularyHead
from plm_jax.models.protocol import ModelConfig
from plm_jax.runs import checkpoint_formats, model_text, run_directory

_SPEED = ("scan_layers", "remat", "attention_kernel", "pipeline_microbatches")


def pin(source: str, workdirs: Iterable[str] = (), field: Sequence[str] = ("init_from",)) -> str:
    """Returns a source; for a Hugging Face repository, returns its name with a commit hash as the revision.

    If `source` has no revision and a run in `workdirs` started from it, the commit that this run recorded is used, so
    that the run can be resumed with the same weights. Otherwise, the latest commit of the revision is used.

    Args:
      source: source of a model.
      workdirs: run directories.
      field: path of the field of `train` that records the source.

    Raises:
      UserError: the repository cannot be downloaded.
    """
    if not storage.is_repository(source):
        return source
    for workdir in workdirs:
        recorded = run_directory.read_source(workdir, field) or ""
        if recorded.startswith(f"{source}@"):
            return recorded
    return repositories.pin(source)


def with_pinned_weights(run: config.Run, workdirs: Iterable[str] = ()) -> config.Run:
    """Returns the run with the results of `pin` as `train.init_from` and as the sources of `train.references`.

    Args:
      workdirs: run directories, as in `pin`.

    Raises:
      UserError: a repository cannot be downloaded.
    """
    workdirs, train = list(workdirs), run.train
    references = {
        name: dataclasses.replace(reference, source=pin(reference.source, workdirs, ("references", name, "source")))
        for name, reference in train.references.items()
    }
    init_from = pin(train.init_from, workdirs)
    return dataclasses.replace(run, train=dataclasses.replace(train, init_from=init_from, references=references))


def resolve(run: config.Run, source: str) -> config.Run:
    """Returns `run`, changed so that it continues to train the model at `source`.

    Args:
      run: config with absolute paths.
      source: a run (its last checkpoint is used), a checkpoint, a directory that `convert` has written, a directory in
        Hugging Face's format, or a repository of the Hugging Face Hub (the run records its commit).

    Raises:
      UserError: the source cannot be read, has no vocabulary, or the config does not fit it.
    """
    source = pin(source)
    pretrained = checkpoint_formats.described(source)
    return adapted(run, pretrained, _checkpoint_path(source, pretrained))


def adapted(run: config.Run, pretrained: Pretrained, init_from: str) -> config.Run:
    """Returns a run with the model, vocabulary and special ids of a trained model.

    `data.cache_dir` becomes a subfolder that is named after the identity of the vocabulary.

    Args:
      init_from: path of the weights, which need not exist yet.

    Raises:
      UserError: the model has no vocabulary, or the config does not fit it.
    """
    model, data, objective = run.model, run.data, run.objective
    if pretrained.vocabulary is None:
        raise MissingVocabularyError
    run = dataclasses.replace(
        run,
        model=_with_computation(pretrained.model, model),
        vocabulary=model_text.section(pretrained),
        train=dataclasses.replace(run.train, init_from=init_from),
    )
    if objective.task_head is not None:
        run = _for_task(run, objective.task_head, model, pretrained)
        run = _with_special_tokens(run)
    elif not data.layout.labels_pairs:
        run = dataclasses.replace(run, model=_without_pairs(run.model))
    run = dataclasses.replace(run, model=_with_dropout(run.model, model))
    identity = vocabularies.identity(vocabularies.load_plain(run.vocabulary))
    cache_dir = os.path.join(data.cache_dir, identity[:12])
    run = dataclasses.replace(run, data=dataclasses.replace(data, cache_dir=cache_dir))
    return config.from_dict(config.to_dict(run))


def _with_computation(pretrained: ModelConfig, configured: ModelConfig) -> ModelConfig:
    """Returns `pretrained` with the values of the fields in `_SPEED` and of `source_encoder` in `configured`."""
    speed = {name: getattr(configured, name, None) for name in _SPEED}
    model = pretrained.with_speed(**{name: value for name, value in speed.items() if value is not None})
    if (encoder := getattr(configured, "source_encoder", None)) is None:
        return model
    if not isinstance(model, models.EncoderDecoderConfig):
        raise UserError(
            "config.model.source_encoder requires an encoder-decoder such as BART, but the checkpoint's model is of "
            f"kind '{model.kind}': use another checkpoint"
        )
    return dataclasses.replace(model, source_encoder=encoder)


def _with_dropout(model: ModelConfig, configured: ModelConfig) -> ModelConfig:
    """Returns `model` with the dropout of `configured`, unless the models have different kinds of dropout rates."""
    dropout = configured.dropout
    if isinstance(dropout, float):
        return model.with_dropout(dropout)
    has_same_rates = dropout is not None and type(dropout) is type(model.dropout)
    return dataclasses.replace(model, dropout=dropout) if has_same_rates else model


def _without_pairs(model: ModelConfig) -> ModelConfig:
    """Removes the pooler of a model if the pooler classifies pairs."""
    pooler = getattr(model, "pooler", None)
    return dataclasses.replace(model, pooler=NoHead()) if isinstance(pooler, Pooler) and pooler.classes else model


def _for_task(run: config.Run, kind: str, configured: ModelConfig, pretrained: Pretrained) -> config.Run:
    """Returns the run with a task head of this kind, and with an objective for the architecture of its model."""
    train, objective = run.train, run.objective
    labels = next((form.labels for form in _forms(run) if form.labels), ())
    head, saved_head = dict(configured.heads).get(TASK), tasks.head_of(pretrained.model)
    fits = saved_head is not None and saved_head.kind == kind
    if head is None and fits and (not labels or getattr(saved_head, "labels", ()) == labels):
        head = saved_head
    head = head or tasks.new(kind, pretrained.model, labels, _family(pretrained))
    if not getattr(head, "labels", True):
        head = dataclasses.replace(head, labels=labels)
    if saved_head is not None and head != saved_head and train.init_names == config.TrainConfig.init_names:
        # Weights of a head with other labels might fit by chance.
        train = dataclasses.replace(train, init_names=(rf"(?!{tasks.PATH}/).*",))
    model = run.model.with_task(head)
    has_vocabulary_loss = "vocabulary" in losses.get(objective.loss, **objective.loss_settings).heads
    if not has_vocabulary_loss and isinstance(getattr(model, "head", None), VocabularyHead | Softmax):
        model = dataclasses.replace(model, head=NoHead())
    if isinstance(objective, objectives.LabeledObjective):
        objective = dataclasses.replace(objective, rows=model.architecture)
    if isinstance(objective, objectives.MultiLabelClassification) and labels:
        objective = dataclasses.replace(objective, num_labels=len(labels))
    return dataclasses.replace(run, model=model, objective=objective, train=train)


def _forms(run: config.Run) -> list[config.Form]:
    """Returns the forms of the labeled sources of a run."""
    return [source.form for source in run.data.sources.values() if isinstance(source, config.LabeledSource)]


def _family(pretrained: Pretrained) -> Family | None:
    """Returns the Hugging Face family of a model, or None."""
    try:
        return families.family_of(families.published(pretrained.model)[0], pretrained.family)
    except UserError:
        return None


def _with_special_tokens(run: config.Run) -> config.Run:
    """Returns the run with new ids, at the end of its vocabulary, for missing special tokens that its rows need."""
    vocabulary, model, objective = run.vocabulary, run.model, run.objective
    if not isinstance(objective, objectives.LabeledObjective):
        return run
    num_texts = max((form.num_texts for form in _forms(run)), default=1)
    missing = [name for name in objective.special_tokens(num_texts) if getattr(vocabulary, name) is None]
    if not missing:
        return run
    if vocabulary.sentinels:
        raise UserError(
            f"the vocabulary has no {', '.join(missing)} for rows of {objective.kind}, and no ids can be added because "
            "its last ids are sentinels: use a checkpoint whose vocabulary has them"
        )
    first = vocabularies.load_plain(vocabulary).vocab_size
    size = first + len(missing)
    new = {name: first + number for number, name in enumerate(missing)}
    new_tokens = max(0, size - model.vocab_size)
    if new_tokens:
        if not isinstance(model, models.TransformerConfig):
            raise UserError(
                f"a model of kind '{model.kind}' does not support new tokens: set their ids in config.vocabulary"
            )
        embedding = dataclasses.replace(model.embedding, vocab_size=size)
        model = dataclasses.replace(model, embedding=embedding)
    return dataclasses.replace(
        run,
        model=model,
        vocabulary=model_text.with_ids(vocabulary, new),
        train=dataclasses.replace(run.train, new_tokens=new_tokens),
    )


def _checkpoint_path(source: str, pretrained: Pretrained) -> str:
    """Returns the absolute path of a source or, for a run directory, of the checkpoint that was read."""
    path = storage.absolute(source).rstrip("/")
    return os.path.join(path, "checkpoints", str(pretrained.step)) if path == pretrained.workdir else path
