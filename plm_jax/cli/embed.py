"""Compute a vector for each text of a file.

usage: plm_jax embed --checkpoint=MODEL --input=FILE --output=FILE [flags]

A vector is the hidden state of a layer, pooled over the tokens of a text, as in sentence-transformers. A .npy file has
the vectors as float32 [rows, dimensions], in the order of the input. A .parquet or .jsonl file has the columns of the
input and `embedding`. Texts that are longer than the maximum length of the model are truncated. For rows without text,
the vector is that of an empty text, and a warning reports how many there are.

example:
  plm_jax embed --checkpoint=runs/demo-bert-0 --input=texts.txt --output=vectors.npy --normalize
"""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "run, checkpoint, directory written by convert, Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)",
)
_INPUT = flags.DEFINE_string(
    "input",
    None,
    "file with the texts: .txt, .jsonl, .csv, .tsv, .parquet, .arrow, .jsonl.gz, .csv.gz or .tsv.gz, or a folder of "
    "Dataset.save_to_disk (required)",
)
_OUTPUT = flags.DEFINE_string("output", None, "file for the vectors: .npy, .parquet or .jsonl (required)")
_TEXT = flags.DEFINE_string("text", "text", "column of the text; the only column of a .txt file is `text`")
_POOLING = flags.DEFINE_enum(
    "pooling",
    "mean",
    ["mean", "cls", "last", "max"],
    "mean or maximum over the tokens of a text, or the first (cls) or last token",
)
_LAYER = flags.DEFINE_integer("layer", -1, "layer whose states are pooled; 0 is the embeddings, -1 the last layer")
_NORMALIZE = flags.DEFINE_bool("normalize", False, "divide each vector by its Euclidean norm")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "number of texts in a batch", lower_bound=1)
_MODULES = ModulesFlag()

Write = Callable[[Sequence[Mapping[str, Any]], np.ndarray], None]


def main() -> None:
    """Writes the vectors and prints a summary of them."""
    checkpoint, source, target = map(command_line.required, (_CHECKPOINT, _INPUT, _OUTPUT))
    from plm_jax.inference import tables

    if target.rpartition(".")[2] not in ("npy", "parquet", "jsonl"):
        raise UserError(f"--output={target}: use a file that ends in .npy, .parquet or .jsonl")
    rows = tables.read(source, target)
    make = tables.example_maker(None, None, [_TEXT.value])
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.inference import language_model

    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
        _ = lm.tokenizer
    language_model.report_step(lm, checkpoint)
    options: dict[str, Any] = {"pooling": _POOLING.value, "layer": _LAYER.value, "normalize": _NORMALIZE.value}
    with _writing(target) as write:

        def embed(chunk: Sequence[tables.Row], texts: list[str]) -> None:
            write(chunk, lm.embed(texts, batch_size=_BATCH_SIZE.value, **options))

        summary = tables.process(rows, make, _BATCH_SIZE.value, "embedding", embed)
    print(f"{target}: {summary}")


@contextlib.contextmanager
def _writing(path: str) -> Generator[Write]:
    """Context manager that creates a file from the rows and vectors that are passed to the function it yields.

    A .npy file gets only the vectors. The file is created when the context ends without an error.
    """
    from plm_jax.inference import tables

    if not path.endswith(".npy"):
        with tables.writing(path) as write_rows:
            yield lambda rows, vectors: write_rows(
                tables.joined(rows, [{"embedding": vector} for vector in vectors.tolist()], path)
            )
        return
    with storage.writing(path) as file:
        shape = (0, 0)

        def write(rows: Sequence[Mapping[str, Any]], vectors: np.ndarray) -> None:
            nonlocal shape
            if not shape[1]:
                np.lib.format.write_array_header_1_0(file, _header(vectors.shape))
            file.write(vectors.astype("<f4").tobytes())
            shape = (shape[0] + len(vectors), vectors.shape[1])

        yield write
        file.seek(0)  # NumPy leaves room in a header for any number of rows.
        np.lib.format.write_array_header_1_0(file, _header(shape))


def _header(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"descr": "<f4", "fortran_order": False, "shape": shape}


if __name__ == "__main__":
    command_line.run(main)
