"""Vocabularies as subclasses of `seqio.Vocabulary`. Importing this module imports seqio and TensorFlow."""

import functools

import numpy as np

from plm_jax.data.tensorflow_side import seqio, tf
from plm_jax.data.vocabularies.vocabulary import Vocabulary


class _InGraphs(Vocabulary):
    """Methods of `seqio.Vocabulary` for TensorFlow graphs."""

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        ids = tf.py_function(lambda text: np.array(self._encode(text.numpy().decode("utf-8"))), [s], tf.int32)
        return tf.ensure_shape(ids, [None])

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.py_function(lambda i: self.decode(i.numpy().tolist()), [ids], tf.string)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes ids [n] like `decode`. Unlike seqio's implementation, it does not need an unk and an eos id."""
        return self._decode_tf(ids)


@functools.cache
def seqio_class(kind: type[Vocabulary]) -> type[Vocabulary]:
    """Returns a subclass of `kind` that is also a `seqio.Vocabulary`.

    The subclass has the name of `kind`, because `identity` depends on the name.
    """
    return type(kind.__name__, (_InGraphs, kind, seqio.Vocabulary), {"__doc__": kind.__doc__})
