"""Imports of TensorFlow, TFDS and seqio that print no messages and reserve no GPU.

Only preparation, task evaluation and generation need these packages. The training process must not import this module.
"""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Redirects file descriptor 2 to /dev/null, because no setting silences TensorFlow's C++ start-up messages."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


with _silent_stderr():
    import seqio
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # TensorFlow only moves text here. By default it would reserve the memory of the GPU that JAX computes on.
    tf.config.set_visible_devices([], "GPU")

__all__ = ["seqio", "tf", "tfds"]
