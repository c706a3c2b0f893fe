"""`python -m plm_jax examples --workdir=W --step=N [--row=i]`: what a step of a run read, and which documents.

With `--document=SOURCE:NUMBER`, as these are named, instead of `--step`: the steps so far that read some of it.
"""

import signal

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_WORKDIR = flags.DEFINE_string("workdir", None, "the run directory")
_STEP = flags.DEFINE_integer("step", None, "the step, of which the first is 1")
_ROW = flags.DEFINE_integer("row", None, "of its batch one row alone, of which the first is 0")
_DOCUMENT = flags.DEFINE_string("document", None, "a training document: which steps read it")
_MODULES = ModulesFlag()


def main() -> None:
    """Prints the rows of a step, or the places of a document."""
    workdir = command_line.required(_WORKDIR)
    step, document = _STEP.value, _DOCUMENT.value
    if (step is None) == (document is None):
        raise UserError("give one of --step and --document")
    _MODULES.load()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Nobody need read to the end.
    command_line.start_jax_on_host()
    with progress.doing("loading"):
        from plm_jax.experiments import examples

    if step is not None:
        lines = examples.of_step(workdir, step, _ROW.value)
    else:
        assert document is not None
        lines = examples.of_document(workdir, document)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    command_line.run(main)
