"""TensorFlow, TFDS and seqio, imported once and for all: silently, and without taking a GPU.

Only preparing, evaluating tasks and text in or out need them; the training process must not import this.
"""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Sends file descriptor 2 to nowhere: TensorFlow's C++ start-up lines heed no setting."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


with _silent_stderr():
    import seqio
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # TensorFlow only moves text here; left alone it would take the memory of the GPU that JAX computes on.
    tf.config.set_visible_devices([], "GPU")

__all__ = ["seqio", "tf", "tfds"]
