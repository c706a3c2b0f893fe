"""Configs that take what a model is from a checkpoint: `pretrain --from=SRC`, `finetune --checkpoint=SRC`.

Of SRC are the model, the vocabulary and the special ids; of the config all else, and of the model its dropout and how
it is computed. Nothing here reads a weight.
"""

import dataclasses
import os

from plm_jax import config, models, objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.hub import families, tasks
from plm_jax.hub.family import Family
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models.heads import TASK, NoHead, Pooler, Softmax, VocabularyHead
from plm_jax.models.protocol import ModelConfig
from plm_jax.runs import checkpoint_formats, model_text

_SPEED = ("scan_layers", "remat", "attention_kernel", "pipeline_microbatches")


def resolve(page: config.Run, source: str) -> config.Run:
    """The run that trains the model at a path further, by a config: `adapted` to it, beginning with its weights.

    Args:
      page: config with absolute paths.
      source: a run, its checkpoint, a converted or a Hugging Face directory; of a run the last checkpoint is meant.

    Raises:
      UserError: as `checkpoint_formats.described` and `adapted`.
    """
    pretrained = checkpoint_formats.described(source)
    return adapted(page, pretrained, _exactly(source, pretrained))


def adapted(page: config.Run, pretrained: Pretrained, init_from: str) -> config.Run:
    """A config's run with the model, vocabulary and special ids of a trained model, whose weights are not looked at.

    The caches are those of the vocabulary, in a folder of `data.cache_dir` that its identity names.

    Args:
      init_from: where the weights are, or will be.

    Raises:
      UserError: the model has no vocabulary beside it, or the config does not fit it.
    """
    from plm_jax.data import vocabularies  # With the libraries of all.

    if pretrained.vocabulary is None:
        raise UserError(
            f"{init_from} has no vocabulary beside it, with which rows are made: put the files there that the model "
            "was trained with"
        )
    run = dataclasses.replace(
        page,
        model=_computed(page.model, pretrained.model),
        vocabulary=model_text.section(pretrained),
        train=dataclasses.replace(page.train, init_from=init_from),
    )
    if isinstance(page.objective, objectives.LabelledObjective):
        run = _with_marks(_for_task(run, page.model, pretrained))
    elif not page.data.layout.labels_pairs:
        run = dataclasses.replace(run, model=_without_pairs(run.model))
    run = dataclasses.replace(run, model=_dropped(page.model, run.model))
    identity = vocabularies.identity(vocabularies.load_plain(run.vocabulary))
    cache_dir = os.path.join(page.data.cache_dir, identity[:12])
    run = dataclasses.replace(run, data=dataclasses.replace(page.data, cache_dir=cache_dir))
    return config.from_dict(config.to_dict(run))


def _computed(given: ModelConfig, of: ModelConfig) -> ModelConfig:
    """A model computed as a config says, with the new encoder that it names."""
    speed = {name: getattr(given, name, None) for name in _SPEED}
    found = of.with_speed(**{name: value for name, value in speed.items() if value is not None})
    if (encoder := getattr(given, "source_encoder", None)) is None:
        return found
    if not isinstance(found, models.EncoderDecoderConfig):
        raise UserError(
            f"config.model.source_encoder is for an encoder-decoder, such as a BART, the checkpoint's model is of kind "
            f"'{found.kind}': name another checkpoint"
        )
    return dataclasses.replace(found, source_encoder=encoder)


def _dropped(given: ModelConfig, of: ModelConfig) -> ModelConfig:
    """A model with the dropout of a config's."""
    if isinstance(given.dropout, float):
        return of.with_dropout(given.dropout)
    is_alike = given.dropout is not None and type(given.dropout) is type(of.dropout)
    return dataclasses.replace(of, dropout=given.dropout) if is_alike else of


def _without_pairs(model: ModelConfig) -> ModelConfig:
    """A model without a pooler that tells pairs apart."""
    pooler = getattr(model, "pooler", None)
    return dataclasses.replace(model, pooler=NoHead()) if isinstance(pooler, Pooler) and pooler.classes else model


def _for_task(run: config.Run, given: ModelConfig, pretrained: Pretrained) -> config.Run:
    """The run with the head of its task, and rows for its model's kind."""
    objective, train = run.objective, run.train
    labels = next((form.labels for form in _forms(run) if form.labels), ())
    wanted, own = dict(given.heads).get(TASK), tasks.head_of(pretrained.model)
    fits = own is not None and own.kind == objective.form and (not labels or own.labels == labels)
    if wanted is None and fits:
        wanted = own
    head = wanted or tasks.new(objective.form, pretrained.model, labels, _family(pretrained))
    if not getattr(head, "labels", True):
        head = dataclasses.replace(head, labels=labels)
    if own is not None and head != own and train.init_names == config.TrainConfig.init_names:
        # Another head, or one of other labels, which would fit by chance.
        train = dataclasses.replace(train, init_names=(rf"(?!{tasks.PATH}/).*",))
    model = run.model.with_task(head)
    if not objective.lm_coefficient and isinstance(getattr(model, "head", None), VocabularyHead | Softmax):
        model = dataclasses.replace(model, head=NoHead())
    objective = dataclasses.replace(objective, rows=model.architecture)
    return dataclasses.replace(run, model=model, objective=objective, train=train)


def _forms(run: config.Run) -> list[config.Form]:
    """Those of its labelled sources."""
    return [source.form for source in run.data.sources.values() if isinstance(source, config.LabelledSource)]


def _family(pretrained: Pretrained) -> Family | None:
    """The family of Hugging Face's that a model is of; None: of none."""
    try:
        return families.family_of(families.published(pretrained.model)[0], pretrained.family)
    except UserError:
        return None


def _with_marks(run: config.Run) -> config.Run:
    """The run with ids for the marks of a decoder's rows that its vocabulary lacks: new ones, at its end."""
    from plm_jax.data import vocabularies

    vocabulary, model = run.vocabulary, run.model
    num_texts = max((form.num_texts for form in _forms(run)), default=1)
    lacking = [name for name in run.objective.special_tokens(num_texts) if getattr(vocabulary, name) is None]
    if not lacking:
        return run
    if vocabulary.sentinels:
        raise UserError(
            f"the vocabulary has no {', '.join(lacking)} for rows of {run.objective.kind}, and none can be added: its "
            "last ids are sentinels"
        )
    first = vocabularies.load_plain(vocabulary).vocab_size
    size = first + len(lacking)
    new = {name: first + number for number, name in enumerate(lacking)}
    grown = max(0, size - model.vocab_size)
    if grown:
        embedding = dataclasses.replace(model.embedding, vocab_size=size)
        model = dataclasses.replace(model, embedding=embedding)
    return dataclasses.replace(
        run,
        model=model,
        vocabulary=model_text.with_ids(vocabulary, new),
        train=dataclasses.replace(run.train, new_tokens=grown),
    )


def _exactly(source: str, pretrained: Pretrained) -> str:
    """The absolute path of what is at a path; of a run that of its checkpoint."""
    path = storage.absolute(source).rstrip("/")
    return os.path.join(path, "checkpoints", str(pretrained.step)) if path == pretrained.workdir else path
