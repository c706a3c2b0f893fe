"""Convert a model between the formats of plm_jax, Hugging Face and bilm-tf.

usage: plm_jax convert --source=MODEL --target=DIR [--format=FORMAT]

Tensors are converted one at a time and keep their dtypes.

example:
  plm_jax convert --source=runs/demo-bert-0 --target=huggingface --format=huggingface
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ModulesFlag

_SOURCE = flags.DEFINE_string(
    "source", None, "run, checkpoint, converted or Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)"
)
_TARGET = flags.DEFINE_string("target", None, "new directory for the converted model (required)")
_FORMAT = flags.DEFINE_enum("format", "plm_jax", ["plm_jax", "huggingface", "bilm"], "format of the target")
_MODULES = ModulesFlag()


def main() -> None:
    """Converts the model and prints a summary of it."""
    source, target = command_line.required(_SOURCE), command_line.required(_TARGET)
    command_line.start_jax_on_host()
    _MODULES.load()
    with progress.doing("loading JAX"):
        from plm_jax.runs import checkpoint_formats

    with progress.doing(f"converting {source}"):
        summary = checkpoint_formats.convert(source, target, _FORMAT.value)
    print(summary)


if __name__ == "__main__":
    command_line.run(main)
