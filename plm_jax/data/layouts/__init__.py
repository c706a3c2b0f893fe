"""Which tokens make each row: a layout opens a split and gives its rows, an index that is arithmetic or memory-mapped.

    layout.py     what a layout is (the role `Layout`), and what it gives when it is opened (`Rows`)
    order.py      which row comes k-th: windows permuted by a seed, and rows within each
    stream.py     a split as one stream of tokens with marks around documents
    index.py      where rows begin of which each depends on the one before
    formats.py    a row that is a stretch of a stream
    noising.py    a row with an objective's noise and targets

and one file for each layout. No state decides which row is the k-th. Nothing is imported here that a config would have
to wait for: what reads and writes files is, once a layout is opened.
"""

from plm_jax.data.layouts.blocks import Blocks
from plm_jax.data.layouts.documents import Documents
from plm_jax.data.layouts.full_sentences import FullSentences
from plm_jax.data.layouts.labelled import LabelledLayout
from plm_jax.data.layouts.layout import Example, Layout, Rows, begins_with
from plm_jax.data.layouts.order import Order
from plm_jax.data.layouts.randomness import generator
from plm_jax.data.layouts.segments import Segments
from plm_jax.data.layouts.sentence_pairs import SentencePairs
from plm_jax.data.layouts.stream import Stream
from plm_jax.data.layouts.streams import Streams

__all__ = [
    "Blocks",
    "Documents",
    "Example",
    "FullSentences",
    "LabelledLayout",
    "Layout",
    "Order",
    "Rows",
    "Segments",
    "SentencePairs",
    "Stream",
    "Streams",
    "begins_with",
    "generator",
]
