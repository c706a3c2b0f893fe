"""The references of a run (`train.references`): frozen models that its loss reads, such as a teacher."""

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from plm_jax import config
from plm_jax.common import progress
from plm_jax.common.errors import UserError
from plm_jax.config import checks
from plm_jax.data import vocabularies
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import pipeline
from plm_jax.models.protocol import ModelConfig
from plm_jax.runs import checkpoint_formats, model_text
from plm_jax.training import mesh as meshes
from plm_jax.training.program import Program, ReferenceModel
from plm_jax.training.trainable import named


def describe(run: config.Run) -> dict[str, ReferenceModel]:
    """Returns the model of each reference, by the name of the reference, without reading the weights.

    Raises:
      UserError: a source has no model, or its model does not support the rows or the mesh of the run.
    """
    models = {}
    for name, reference in run.train.references.items():
        model = checkpoint_formats.described(reference.source).model
        _check(run, name, model)
        models[name] = ReferenceModel(model.with_speed(scan_layers=True, remat="none"), reference.dtype)
    return models


def _check(run: config.Run, name: str, model: ModelConfig) -> None:
    if 0 < model.token_types < run.model.token_types:
        raise UserError(
            f"reference '{name}' has {model.token_types} token types, but config.model has {run.model.token_types}: "
            "choose another reference, or lower config.model.embedding.token_types"
        )
    for phase in config.resolve_phases(run):
        in_phase = config.in_phase(run, phase)
        longest, stages = checks.longest_text(in_phase, phase.length), config.mesh_of(run, phase).stage
        if model.num_positions is not None and longest > model.num_positions:
            raise UserError(
                f"rows of {longest} tokens are longer than the {model.num_positions} positions of reference '{name}': "
                "lower config.data.length, or choose another reference"
            )
        if stages > 1 and not pipeline.cuts(model, stages):
            raise UserError(
                f"mesh.stage={stages} cannot split the layers of reference '{name}': set config.mesh.stage to 1"
            )


def check_vocabularies(run: config.Run, vocabulary_id: str) -> None:
    """Checks that the references were trained with the vocabulary of the run.

    If a reference does not record the identity of its vocabulary, its vocabulary files are compared. If they cannot be
    compared, a warning is printed.

    Raises:
      UserError: a reference was trained with another vocabulary.
    """
    for name, reference in run.train.references.items():
        described = checkpoint_formats.described(reference.source)
        trained_with = described.vocabulary_id or _identity_of_files(described, run)
        if trained_with is None:
            line = (
                f"reference '{name}': cannot be compared with the vocabulary of this run: check that they are the same"
            )
            print(line, file=sys.stderr)
        elif trained_with != vocabulary_id:
            raise UserError(
                f"reference '{name}' was trained with the vocabulary {trained_with[:12]}, but this run reads "
                f"{vocabulary_id[:12]}: use the same vocabulary, or choose another reference"
            )


def _identity_of_files(pretrained: Pretrained, run: config.Run) -> str | None:
    """Returns the identity of the vocabulary that a model's files and the special ids of a run define together.

    The result is None if the model has no vocabulary, or if the kinds of the two vocabularies differ.
    """
    scheme = run.vocabulary.spec.partition(":")[0]
    if pretrained.vocabulary is None or pretrained.vocabulary.partition(":")[0] != scheme:
        return None
    files = model_text.vocabulary(pretrained).specials
    section = dataclasses.replace(
        run.vocabulary, spec=files.spec, train_kind=files.train_kind, lowercase=files.lowercase
    )
    return vocabularies.identity(vocabularies.load_plain(section))


def load(references: Mapping[str, config.ReferenceConfig], program: Program) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads the parameters of the references onto the mesh of a program.

    Returns:
      A pair of dicts with the names of the references as keys: parameters, and SHA-256 hashes of the parameters in
      float32.

    Raises:
      UserError: a reference cannot be read.
    """
    params, hashes = {}, {}
    for name, reference in references.items():
        like = program.reference_shapes[name]
        with (
            progress.doing(f"loading {reference.source}"),
            checkpoint_formats.opened(reference.source) as pretrained,
        ):
            stored, digest, leaves = dict(named(pretrained.params)), hashlib.sha256(), []
            for path, leaf in named(like):
                if path not in stored:
                    raise UserError(f"{reference.source} lacks {path} of its model: choose another reference")
                values = np.ascontiguousarray(np.asarray(stored[path], np.float32))
                digest.update(f"{path} {values.shape}".encode())
                digest.update(values.data)
                leaves.append(meshes.place(values.astype(leaf.dtype), leaf.sharding))
        params[name] = jax.tree.unflatten(jax.tree.structure(like), leaves)
        hashes[name] = digest.hexdigest()
    return params, hashes
