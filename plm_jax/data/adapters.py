"""Turns layouts and objectives into seqio preprocessors, which run the same NumPy code as the trainer.

    vocabulary = vocabularies.load(config.VocabularyConfig("bytes", bos=256, eos=257, mask=258))
    special = objectives.Special(bos=256, eos=257, mask=258, vocab_size=vocabulary.vocab_size)
    noise = adapters.preprocessor(objectives.get("denoising", special), 512, word_initial=vocabulary.word_initial)
    seqio.TaskRegistry.add("noised", source, preprocessors=[adapters.tokenize(vocabulary), noise], ...)

Importing this module imports seqio and therefore TensorFlow.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import noising
from plm_jax.data.tensorflow_side import tf
from plm_jax.data.vocabularies import Vocabulary

Preprocessor = Callable[[tf.data.Dataset], tf.data.Dataset]
SENTENCES, BLOCKS = "sentence_starts", layouts.Blocks()


def tokenize(vocabulary: Vocabulary, feature: str = "targets") -> Preprocessor:
    """Returns a seqio preprocessor that replaces the features of an example by tokens and starts of sentences.

    Args:
      feature: name of the feature with the tokens of `text`, int32 [n]. The feature `sentence_starts`, int32 [s], has
        the index of the first token of each sentence. All other features are dropped.
    """

    def encode(text: bytes) -> list[np.ndarray]:
        ((tokens, sentence_starts),) = vocabulary.encode_sentences([text.decode("utf-8")])
        return [tokens.astype(np.int32), sentence_starts.astype(np.int32)]

    def row(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens, sentence_starts = tf.numpy_function(encode, [example["text"]], [tf.int32, tf.int32])
        return {feature: tf.ensure_shape(tokens, [None]), SENTENCES: tf.ensure_shape(sentence_starts, [None])}

    return lambda dataset: dataset.map(row)


class _Documents(cache.DocumentTable):
    """Table of documents in memory, with their sentences."""

    def __init__(self, tokens: np.ndarray, documents: np.ndarray, sentences: np.ndarray, counts: np.ndarray):
        """Creates the table.

        Args:
          tokens: [num_tokens], the tokens of all documents.
          documents: [num_documents + 1], index of the first token of each document, and then `num_tokens`.
          sentences: index of the first token of each sentence, counted from the first token of its document.
          counts: [num_documents], number of sentences of each document.
        """
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
    """Converts a batch to a ragged tensor. Batches whose rows are known to have equal lengths are dense."""
    ragged: Any = tf.RaggedTensor
    return batch if isinstance(batch, ragged) else ragged.from_tensor(batch)


def _check_tables(objective: objectives.BoundObjective, token_counts: np.ndarray | None) -> None:
    """Rejects an objective that reads token counts or a table of similar words that the caller did not pass."""
    if "token_counts" in objective.reads and token_counts is None:
        raise UserError("objectives with smoothed masking need `token_counts`: pass them, or set smoothing to 0")
    if objective.settings.similar_share and objective.special.similar_words is None:
        raise UserError("objectives with similar_share need a table of similar words: set `Special.similar_words`")


def preprocessor(
    objective: objectives.BoundObjective,
    length: int,
    seed: int = 0,
    split: str = "train",
    feature: str = "targets",
    word_initial: np.ndarray | None = None,
    *,
    token_counts: np.ndarray | None = None,
    layout: layouts.Layout = BLOCKS,
    characters: np.ndarray | None = None,
    identity: str = "",
    num_documents: int = 2**14,
) -> Preprocessor:
    """Returns a seqio preprocessor that turns tokenized documents into rows of `length` tokens, with noise and targets.

    A document is an array of tokens [n] in `feature`. Documents are laid out in memory in groups of `num_documents`.
    The noise of a row of the first group is keyed by seed, split and row index, as in `Reader.in_order`. In later
    groups, it is also keyed by the index of the group. Sentences begin at `sentence_starts` [s]; without this feature,
    each document is one sentence. Layouts of streams yield consecutive rows of the text. For batches whose rows
    continue those of the previous batch, read one shard of the source per row.

    Args:
      word_initial: bool [vocab_size], whether each token begins a word, for objectives that mask whole words.
      token_counts: [vocab_size], number of occurrences of each token, for smoothed masking.
      layout: layout, which decides the tokens of each row.
      characters: [vocab_size, C], characters of each word, for streams (`words.characters`).
      identity: identity of a cache, from its manifest. Layouts then draw the same sentence pairs as from this cache.
      num_documents: number of documents per group. Rows of larger groups resemble those of training more closely.

    Raises `UserError` if the objective reads token counts or similar words, and they are missing.
    """
    _check_tables(objective, token_counts)
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
                yield noising.make(objective, opened, index, rng, word_initial, token_counts)

    def lay_out(number: tf.Tensor, documents: tuple[tf.Tensor, tf.Tensor]) -> tf.data.Dataset:
        tokens, starts = map(_ragged, documents)
        parts = number, tokens.values, tokens.row_splits, starts.values, starts.row_lengths()
        return tf.data.Dataset.from_generator(rows, args=parts, output_signature=signature)

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        documents: Any = dataset.map(read)
        documents = documents.filter(lambda tokens, starts: tf.size(tokens) > 0)
        return documents.ragged_batch(num_documents).enumerate().flat_map(lay_out)

    return apply
