"""Configs that take what a model is from a checkpoint: `pretrain --from=SRC`, `finetune --checkpoint=SRC`.

Of SRC are the model, the vocabulary and the special ids; of the config all else, and of the model its dropout and how
it is computed. Nothing here reads a weight.
"""

import dataclasses
import os

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models.protocol import Model
from plm_jax.training import checkpoint_formats, model_text

_SPEED = ("scan_layers", "remat", "attention_kernel", "pipeline_microbatches")


def resolve(page: config.Run, source: str) -> config.Run:
    """The run that trains the model at a path further, by a config: `adapted` to it, beginning with its weights.

    Args:
      page: a checked config whose paths are absolute.
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
    vocabulary = model_text.section(pretrained)
    identity = vocabularies.identity(vocabularies.load_plain(vocabulary))
    run = dataclasses.replace(
        page,
        model=_model(page.model, pretrained.model),
        vocabulary=vocabulary,
        data=dataclasses.replace(page.data, cache_dir=os.path.join(page.data.cache_dir, identity[:12])),
        train=dataclasses.replace(page.train, init_from=init_from),
    )
    return config.from_dict(config.to_dict(run))


def _model(given: Model, of: Model) -> Model:
    """A model computed and dropped as a config says."""
    speed = {name: getattr(given, name) for name in _SPEED if hasattr(given, name)}
    found = of.with_speed(**speed)
    if type(given.dropout) is type(found.dropout) and found.dropout is not None:
        found = dataclasses.replace(found, dropout=given.dropout)
    return found


def _exactly(source: str, pretrained: Pretrained) -> str:
    """The absolute path of what is at a path; of a run that of its checkpoint."""
    path = storage.absolute(source).rstrip("/")
    return os.path.join(path, "checkpoints", str(pretrained.step)) if path == pretrained.workdir else path
