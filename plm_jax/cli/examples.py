"""Print the rows that a training step read, or the steps that read a document.

usage: plm_jax examples --workdir=DIR --step=N [--row=N]
       plm_jax examples --workdir=DIR --document=SOURCE:NUMBER

--step prints every array of each row, and the documents that the row comes from, as SOURCE:NUMBER. NUMBER is the index
of the document in the training split, counted from 0. --document lists the finished steps that read a part of the
document.

example:
  plm_jax examples --workdir=runs/demo-bert-0 --step=1 --row=0
"""

import signal

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_WORKDIR = flags.DEFINE_string("workdir", None, "run directory (required)")
_STEP = flags.DEFINE_integer("step", None, "training step, counted from 1")
_ROW = flags.DEFINE_integer("row", None, "row of the batch, counted from 0 (default: all rows)")
_DOCUMENT = flags.DEFINE_string("document", None, "training document, as SOURCE:NUMBER")
_MODULES = ModulesFlag()


def main() -> None:
    """Prints the rows of a step, or the steps that read a document."""
    workdir = command_line.required(_WORKDIR)
    step, document = _STEP.value, _DOCUMENT.value
    if (step is None) == (document is None):
        raise UserError("pass either --step or --document")
    _MODULES.load()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `head` may close the pipe.
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
