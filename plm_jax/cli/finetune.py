"""Fine-tune a pretrained model on your own table or the task of a config, or resume a run.

usage: plm_jax finetune --config=CONFIG --checkpoint=MODEL --workdir=DIR [flags]
       plm_jax finetune --train=FILE --text=COLUMN --label=COLUMN --checkpoint=MODEL --workdir=DIR [flags]

The model, the vocabulary and the special ids come from the checkpoint. Everything else comes from the config. Running
the same command again resumes the run. With --seeds=0,1,2, one model per seed is trained in DIR/seed-0, DIR/seed-1 and
DIR/seed-2, and the mean ± standard deviation of their held-out metrics is printed.

With --train, you need no config: `finetune` reads a table (.jsonl, .csv, .tsv, .parquet or a folder of
`Dataset.save_to_disk`) and writes the config to DIR/finetune.py. The labels come from the table, and are printed with
their counts. A label that occurs only in the --validation table is an error. The maximum length of a text is chosen so
that nearly all texts of the table fit, up to the limit of the model; for --answer, it is 384 tokens. The
hyperparameters are the defaults for the family of the model, or those of BERT if the family has none.

The model learns to predict one of the following, depending on the flags that name the columns:

  class of a text       --text=COLUMN --label=COLUMN       each distinct value is a class
  class of a pair       --text=COLUMN,COLUMN --label=COLUMN
  labels of a text      --text=COLUMN --labels=COLUMN      a list, or a string such as `a,b`; may be empty
  score of a text       --text=COLUMN --score=COLUMN
  tags of words         --text=COLUMN --tags=COLUMN        a list of words and a list with a tag for each word
  answer in a context   --question=COLUMN --context=COLUMN --answer=COLUMN
  multiple choice       --text=COLUMN --choices=COLUMN --label=COLUMN

With --labels or --score, --text may also name two columns. Overrides such as --config.schedule.learning_rate=1e-4
are written to the config.

examples:
  plm_jax finetune --train=reviews.csv --text=review --label=stars --checkpoint=runs/demo-bert-0 --workdir=runs/stars
  plm_jax finetune --config=tasks/sentiment --checkpoint=runs/demo-bert-0 --workdir=runs/demo-sentiment
"""

import os
import time

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag("config file such as configs/tasks/sentiment.py, or a name such as tasks/sentiment")
_TRAIN = flags.DEFINE_string("train", None, "table of training examples, instead of --config")
_VALIDATION = flags.DEFINE_string("validation", "", "table of validation examples (default: a tenth of --train)")
_TEXT = flags.DEFINE_list("text", [], "column of the text, or two columns, such as premise,hypothesis")
_LABEL = flags.DEFINE_string(
    "label",
    "",
    "column of the class of each text; with --choices, column of the correct choice: its text, or its index from 0",
)
_LABELS = flags.DEFINE_string(
    "labels", "", "column with any number of labels per text: a list, or a string such as a,b"
)
_SCORE = flags.DEFINE_string("score", "", "column of the number to predict")
_TAGS = flags.DEFINE_string("tags", "", "column with a list of tags, one for each word of the list in --text")
_CHOICES = flags.DEFINE_string(
    "choices", "", "column with a list of texts, one of which is the correct answer to --text"
)
_QUESTION = flags.DEFINE_string("question", "", "column of a question about --context")
_CONTEXT = flags.DEFINE_string("context", "", "column of the text that contains the answer")
_ANSWER = flags.DEFINE_string(
    "answer", "", 'column of the answers in SQuAD\'s format: {"text": [...], "answer_start": [...]}'
)
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "run, checkpoint, directory written by `convert`, Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)",
)
_WORKDIR = flags.DEFINE_string("workdir", None, "run directory for config, checkpoints and metrics (required)")
_SEEDS = flags.DEFINE_list("seeds", [], "train one model per seed, such as 0,1,2 (default: the seed of the config)")
_ALLOW_CHANGES = flags.DEFINE_bool(
    "allow_changes", False, "resume even if the data, seed or optimizer differ from those of the saved run"
)
_REFUSE_DAMAGED = flags.DEFINE_bool(
    "refuse_damaged", False, "fail if the newest checkpoint is damaged, instead of resuming from the one before it"
)


def main() -> None:
    """Fine-tunes the model of `--checkpoint` on the data of `--config`, or on the examples in the table `--train`."""
    began, source = time.time(), command_line.required(_CHECKPOINT)
    workdir, seeds = command_line.required(_WORKDIR), command_line.seed_list(_SEEDS)
    written = _write_config(source, workdir)
    run = _CONFIG.run(replaces_model=True, default=written)
    with progress.doing("importing JAX"):
        from plm_jax.experiments import summary
        from plm_jax.runs import train

    results = train.finetune(
        run,
        source,
        workdir,
        seeds=seeds,
        allow_changes=_ALLOW_CHANGES.value,
        refuse_damaged=_REFUSE_DAMAGED.value,
        config_flags=_CONFIG.arguments(written),
        began=began,
    )
    if progress.is_first():
        print("\n".join(summary.lines(results, time.time() - began)))


def _write_config(source: str, workdir: str) -> str | None:
    """Writes the config for the table of `--train` and returns its path, or None without this flag.

    Raises:
      UserError: flags are missing or cannot be combined, or the table does not fit them.
    """
    texts = tuple(_TEXT.value)
    column_flags = (_LABEL, _LABELS, _SCORE, _TAGS, _CHOICES, _QUESTION, _CONTEXT, _ANSWER)
    if not _TRAIN.value:
        if named := [f"--{flag.name}" for flag in (_VALIDATION, _TEXT, *column_flags) if flag.value]:
            raise UserError(f"{' and '.join(named)} need --train: pass it too, or leave them out")
        return None
    if _CONFIG.is_given:
        raise UserError("--config and --train cannot be combined: leave one out")
    if storage.is_remote(workdir):
        raise UserError("--train needs a local --workdir, where it writes a config: use --config for a remote one")
    with progress.doing(f"reading {_TRAIN.value}"):
        from plm_jax.runs import checkpoint_formats, run_directory, task_config

        _CONFIG.modules.load()
        columns = task_config.Columns(texts, **{flag.name: flag.value for flag in column_flags})
        path = os.path.join(workdir, "finetune.py")
        if run_directory.has_checkpoint(workdir) and not os.path.exists(path):
            raise UserError(f"{workdir} contains another run: choose another --workdir")
        described = checkpoint_formats.described(source)
        lines = task_config.write(path, _TRAIN.value, _VALIDATION.value, columns, described, _CONFIG.changes)
    if lines and progress.is_first():
        print(*lines, sep="\n", flush=True)
    return path


if __name__ == "__main__":
    command_line.run(main)
