"""`python -m plm_jax convert --source=SRC --target=DIR [--format=plm_jax|huggingface|bilm]`: weights in another form.

One tensor at a time, each in the type that it has.
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ModulesFlag

_SOURCE = flags.DEFINE_string("source", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_TARGET = flags.DEFINE_string("target", None, "a new folder")
_FORMAT = flags.DEFINE_enum("format", "plm_jax", ["plm_jax", "huggingface", "bilm"], "what the folder becomes")
_MODULES = ModulesFlag()


def main() -> None:
    """Converts and prints what there is now."""
    source, target = command_line.required(_SOURCE), command_line.required(_TARGET)
    command_line.start_jax_on_host()
    _MODULES.load()
    with progress.doing("loading JAX"):
        from plm_jax.runs import checkpoint_formats

    with progress.doing(f"converting {source}"):
        said = checkpoint_formats.convert(source, target, _FORMAT.value)
    print(said)


if __name__ == "__main__":
    command_line.run(main)
