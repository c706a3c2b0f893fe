"""Each kind of vocabulary as a `seqio.Vocabulary`. Importing this imports seqio and so TensorFlow."""

import functools

import numpy as np

from plm_jax.data.tensorflow_side import seqio, tf
from plm_jax.data.vocabularies.vocabulary import Vocabulary


class _InGraphs(Vocabulary):
    """What `seqio.Vocabulary` asks in TensorFlow's graphs."""

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        ids = tf.py_function(lambda text: np.array(self._encode(text.numpy().decode("utf-8"))), [s], tf.int32)
        return tf.ensure_shape(ids, [None])

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.py_function(lambda i: self.decode(i.numpy().tolist()), [ids], tf.string)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """As `decode`; seqio's own needs an unk and an eos id."""
        return self._decode_tf(ids)


@functools.cache
def of(kind: type[Vocabulary]) -> type[Vocabulary]:
    """A kind of vocabulary that is a `seqio.Vocabulary`, too; both have one name, which the identity counts."""
    return type(kind.__name__, (_InGraphs, kind, seqio.Vocabulary), {"__doc__": kind.__doc__})
