"""Layouts and objectives as seqio preprocessors: the same NumPy code as the trainer's.

    vocabulary = vocabularies.load(config.VocabularyConfig("bytes", bos=256, eos=257, mask=258))
    special = objectives.Special(bos=256, eos=257, mask=258, vocab_size=vocabulary.vocab_size)
    noise = adapters.preprocessor(objectives.get("denoising", special), 512, word_initial=vocabulary.word_initial)
    seqio.TaskRegistry.add("noised", source, preprocessors=[adapters.tokenize(vocabulary), noise], ...)

Importing this imports seqio and so TensorFlow.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import noising
from plm_jax.data.tensorflow_side import tf
from plm_jax.data.vocabularies import Vocabulary

Preprocessor = Callable[[tf.data.Dataset], tf.data.Dataset]
SENTENCES, BLOCKS = "sentence_starts", layouts.Blocks()


def tokenize(vocabulary: Vocabulary, feature: str = "targets") -> Preprocessor:
    """A seqio preprocessor: from `text` to its tokens [n] in `feature` and `sentence_starts` [s], both int32."""

    def encode(text: bytes) -> list[np.ndarray]:
        (found,) = vocabulary.encode_sentences([text.decode("utf-8")])
        return [part.astype(np.int32) for part in found]

    def row(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        made = tf.numpy_function(encode, [example["text"]], [tf.int32, tf.int32])
        return {name: tf.ensure_shape(part, [None]) for name, part in zip((feature, SENTENCES), made, strict=True)}

    return lambda dataset: dataset.map(row)


class _Documents(cache.DocumentTable):
    """Documents in memory, with their sentences."""

    def __init__(self, tokens: np.ndarray, documents: np.ndarray, sentences: np.ndarray, counts: np.ndarray):
        """`sentences` are those of all documents, each counted from its document's begin; `counts` tells how many."""
        self._tokens = tokens
        self.documents = documents.astype(np.int64)
        self._sentences = sentences + np.repeat(self.documents[:-1], counts)
        self.num_tokens, self.num_documents = len(tokens), len(counts)

    @override
    def tokens(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]

    @override
    def has(self, name: str) -> bool:
        return name == SENTENCES

    @override
    def column(self, name: str) -> np.ndarray:
        return self._sentences


def _ragged(batch: Any) -> tf.RaggedTensor:
    """A batch that is dense where all rows are known to be of one length."""
    ragged: Any = tf.RaggedTensor
    return batch if isinstance(batch, ragged) else ragged.from_tensor(batch)


def preprocessor(
    objective: objectives.BoundObjective,
    length: int,
    seed: int = 0,
    split: str = "train",
    feature: str = "targets",
    word_initial: np.ndarray | None = None,
    *,
    layout: layouts.Layout = BLOCKS,
    characters: np.ndarray | None = None,
    identity: str = "",
    num_documents: int = 2**14,
) -> Preprocessor:
    """A seqio preprocessor: from documents, tokens [n] in `feature`, to rows of `length` with noise and targets.

    Documents are laid out `num_documents` at a time, in memory. The first rows are those of `Reader.in_order(split)`
    over so many documents, the noise keyed by seed, split and index; in what follows it is keyed by how many documents
    went before, too. Sentences begin at `sentence_starts` [s]; without them each document is one. Rows of streams are
    in the order of the text: batch b shards of the source to have b rows that each go on.

    Args:
      word_initial: bool [vocab_size], the vocabulary's; objectives that mask whole words need it.
      layout: which tokens make a row.
      characters: [vocab_size, C], those of each word, for streams (`words.characters`).
      identity: of the cache whose pairs are wanted, as in its manifest; pairs are drawn by it, too.
      num_documents: more are more alike to the trainer's rows, and fewer sooner begun.
    """
    like = noising.blank(layout, length, objective, 0 if characters is None else characters.shape[1])
    signature = {key: tf.TensorSpec(value.shape, value.dtype) for key, value in like.items()}

    def read(row: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        starts = tf.cast(row[SENTENCES], tf.int32) if SENTENCES in row else tf.zeros([1], tf.int32)
        return tf.cast(row[feature], tf.int32), starts

    def rows(number: np.ndarray, *documents: np.ndarray) -> Iterator[layouts.Example]:
        with tempfile.TemporaryDirectory() as folder:
            table = _Documents(*documents)
            request = layouts.RowRequest(table, split, identity, folder, length, objective, seed, characters)
            opened = layout.open(request)
            for index in range(opened.num_rows):
                rng = layouts.generator(seed, split, index, int(number))
                yield noising.make(objective, opened, index, rng, word_initial)

    def lay_out(number: tf.Tensor, documents: tuple[tf.Tensor, tf.Tensor]) -> tf.data.Dataset:
        tokens, starts = map(_ragged, documents)
        parts = number, tokens.values, tokens.row_splits, starts.values, starts.row_lengths()
        return tf.data.Dataset.from_generator(rows, args=parts, output_signature=signature)

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        documents: Any = dataset.map(read)
        documents = documents.filter(lambda tokens, starts: tf.size(tokens) > 0)
        return documents.ragged_batch(num_documents).enumerate().flat_map(lay_out)

    return apply
