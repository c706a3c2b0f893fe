"""Convert a model between the formats of plm_jax, Hugging Face, sentence-transformers and bilm-tf.

usage: plm_jax convert --source=MODEL --target=DIR [--format=FORMAT]
       plm_jax convert --source=MODEL --push=ORG/NAME [flags]

Tensors are converted one at a time and keep their dtypes, except in the format bilm, which stores float32. --push
uploads the result to the Hugging Face Hub in one commit, with a generated model card that replaces README.md. It
requires pip install '.[hub]' and a token (HF_TOKEN, or hf auth login). If an upload is interrupted, run the same
command again.

examples:
  plm_jax convert --source=runs/demo-bert-0 --target=huggingface --format=huggingface
  plm_jax convert --source=runs/demo-bert-0 --target=embedder --format=sentence-transformers
  plm_jax convert --source=runs/demo-bert-0 --push=my-name/demo-bert --private
"""

from typing import Any

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_SOURCE = flags.DEFINE_string(
    "source",
    None,
    "run, checkpoint, directory written by `convert`, Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)",
)
_TARGET = flags.DEFINE_string("target", None, "new directory for the converted model (optional with --push)")
_FORMAT = flags.DEFINE_enum(
    "format",
    None,
    ["plm_jax", "huggingface", "sentence-transformers", "bilm"],
    "format of the target (default: plm_jax; with --push: huggingface)",
)
_POOLING = flags.DEFINE_enum(
    "pooling",
    None,
    ["mean", "cls", "last", "max"],
    "with --format=sentence-transformers: pooling of the tokens, as in embed --pooling (default: mean)",
)
_NORMALIZE = flags.DEFINE_bool(
    "normalize", False, "with --format=sentence-transformers: divide each vector by its Euclidean norm"
)
_PUSH = flags.DEFINE_string("push", None, "repository ORG/NAME of the Hugging Face Hub to upload the model to")
_PRIVATE = flags.DEFINE_bool(
    "private", False, "with --push: create the repository as private; fail if it already exists and is public"
)
_AVERAGE = flags.DEFINE_bool(
    "average", False, "convert the moving average of the weights (train.average) of a run or checkpoint"
)
_LICENSE = flags.DEFINE_string("license", None, "with --push: license for the model card, such as apache-2.0")
_MODULES = ModulesFlag()


def main() -> None:
    """Converts the model and prints a summary; with `--push`, also uploads the result."""
    source = command_line.required(_SOURCE)
    if not _PUSH.value and (_PRIVATE.value or _LICENSE.value):
        raise UserError("--private and --license have no effect without --push: add --push, or leave them out")
    if (_POOLING.value or _NORMALIZE.value) and _FORMAT.value != "sentence-transformers":
        raise UserError("--pooling and --normalize need --format=sentence-transformers: add it, or leave them out")
    if _PUSH.value and _AVERAGE.value:
        raise UserError("--average and --push cannot be combined: convert to --target first, and push that directory")
    target = None if _PUSH.value else command_line.required(_TARGET)
    command_line.start_jax_on_host()
    _MODULES.load()
    if target is None:
        _publish(source)
        return
    with progress.doing("loading JAX"):
        from plm_jax.runs import checkpoint_formats

    with progress.doing(f"converting {source}"):
        summary = checkpoint_formats.convert(source, target, _FORMAT.value or "plm_jax", _AVERAGE.value, **_pooling())
    print(summary)


def _pooling() -> dict[str, Any]:
    return {"pooling": _POOLING.value or "mean", "normalize": _NORMALIZE.value}


def _publish(source: str) -> None:
    with progress.doing("loading JAX"):
        from plm_jax.experiments import publishing

    print(
        publishing.publish(
            source,
            command_line.required(_PUSH),
            target=_TARGET.value,
            format=_FORMAT.value or "huggingface",
            private=_PRIVATE.value,
            license=_LICENSE.value,
            **_pooling(),
        )
    )


if __name__ == "__main__":
    command_line.run(main)
