"""Layouts, which decide the tokens of each row of a batch.

A row can be read by its index, without reading other rows.

    layout.py     the role `Layout`, which opens a split
    rows.py       rows of an opened split
    order.py      order of rows: windows permuted by a seed, and rows permuted within each window
    stream.py     a split as one stream of tokens, with optional special ids around documents
    index.py      starts of rows, stored on disk, for layouts in which they cannot be computed from the index of a row
    formats.py    padding, mask and segment ids of a row
    noising.py    a row with the noise and targets of an objective

Each layout has its own file. `inputs_targets.py` has rows of examples with inputs and targets, which need no layout.
"""

from plm_jax.data.layouts.blocks import Blocks
from plm_jax.data.layouts.documents import Documents
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.full_sentences import FullSentences
from plm_jax.data.layouts.labeled import LabeledLayout
from plm_jax.data.layouts.layout import Layout, RowRequest, begins_with
from plm_jax.data.layouts.order import Order, RowOrder
from plm_jax.data.layouts.packed import Packed
from plm_jax.data.layouts.pair_streams import PairStreams
from plm_jax.data.layouts.randomness import generator
from plm_jax.data.layouts.records import Records
from plm_jax.data.layouts.rows import Rows
from plm_jax.data.layouts.segments import Segments
from plm_jax.data.layouts.sentence_pairs import SentencePairs
from plm_jax.data.layouts.stream import Stream
from plm_jax.data.layouts.streams import Streams
from plm_jax.data.layouts.translations import Translations

__all__ = [
    "Blocks",
    "Documents",
    "Example",
    "FullSentences",
    "LabeledLayout",
    "Layout",
    "Order",
    "Packed",
    "PairStreams",
    "Records",
    "RowOrder",
    "RowRequest",
    "Rows",
    "Segments",
    "SentencePairs",
    "Stream",
    "Streams",
    "Translations",
    "begins_with",
    "generator",
]
