"""Predict labels, scores, tags, answers or texts for the rows of a file.

usage: plm_jax predict --checkpoint=MODEL --input=FILE --output=FILE [flags]

A fine-tuned model predicts what it was trained for. Other models fill the blanks of each text, continue it or answer
it, as `generate` does. The output has the rows of the input, in the same order, and these additional columns:

  class of a text       predicted_label, predicted_probability, predicted_probabilities
  labels of a text      predicted_labels, predicted_probabilities
  score of a text       predicted_score
  tags of words         predicted_words, predicted_tags, predicted_entities
  answer in a context   predicted_answer, predicted_start, predicted_end, predicted_score
  choice                predicted_choice, predicted_text, predicted_probabilities
  generated text        predicted_text

The output is a .jsonl, .csv, .tsv or .parquet file. The input may also be a .txt file with one text per line, an .arrow
file, a .gz file (.jsonl.gz, .csv.gz or .tsv.gz) or a folder of Dataset.save_to_disk. The input needs no labels. By
default, the texts are in the columns that the model was trained on. For a model that was not trained by plm_jax, the
columns are `text`, or `question` and `context` for answers, or `question` and `choices` for multiple choice. For rows
without text, the prediction is that of an empty text, and a warning reports how many there are.

examples:
  plm_jax predict --checkpoint=runs/demo-sentiment --input=new.csv --output=predictions.csv
  plm_jax predict --checkpoint=hf:ORG/NAME --input=pairs.jsonl --output=predictions.jsonl --text=premise,hypothesis
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ModulesFlag

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "run, checkpoint, directory written by convert, Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)",
)
_INPUT = flags.DEFINE_string(
    "input",
    None,
    "file with the examples: .txt, .jsonl, .csv, .tsv, .parquet, .arrow, .jsonl.gz, .csv.gz or .tsv.gz, or a folder of "
    "Dataset.save_to_disk (required)",
)
_OUTPUT = flags.DEFINE_string("output", None, "file for the predictions: .jsonl, .csv, .tsv or .parquet (required)")
_TEXT = flags.DEFINE_list(
    "text", [], "column of the text, or two columns, such as premise,hypothesis (default: the columns used in training)"
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "number of rows in a batch", lower_bound=1)
_MODULES = ModulesFlag()


def main() -> None:
    """Writes the predictions and prints a summary of them."""
    checkpoint, source, target = map(command_line.required, (_CHECKPOINT, _INPUT, _OUTPUT))
    from plm_jax.inference import tables

    tables.check_output(target)
    rows = tables.read(source, target)
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.hub import tasks
        from plm_jax.inference import language_model

    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
        _ = lm.tokenizer
    language_model.report_step(lm, checkpoint)
    head = tasks.head_of(lm.config)
    names = _TEXT.value or (["text"] if source.endswith(".txt") and head else [])
    make = tables.example_maker(lm.run, head and head.kind, names)
    _predict(lm, rows, make, source, target)


def _predict(lm: Any, rows: Iterator[tuple[str, Any]], make: Any, source: str, target: str) -> None:
    """Predicts the rows chunk by chunk, writes them and prints a summary."""
    from plm_jax.inference import tables

    counts: collections.Counter[str] = collections.Counter()
    with tables.writing(target) as write:

        def predict(chunk: Sequence[tables.Row], examples: list[Any]) -> None:
            predictions = lm.predict(examples, batch_size=_BATCH_SIZE.value)
            columns = [prediction.columns() for prediction in predictions]
            write(tables.joined(chunk, columns, source))
            counts.update(prediction.label for prediction in predictions if hasattr(prediction, "label"))

        summary = tables.process(rows, make, _BATCH_SIZE.value, "predicting", predict)
    print(f"{target}: {summary}")
    if counts:
        print("predicted labels:")
    for label, count in counts.most_common(10):
        print(f"  {label}: {count:,} ({count / counts.total():.1%})")


if __name__ == "__main__":
    command_line.run(main)
