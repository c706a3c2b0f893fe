"""Tokenized documents in memory, which layouts can read like a split of a cache."""

from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from plm_jax.data.cache.columns import Column, Values
from plm_jax.data.cache.split import DocumentTable


class MemoryTable(DocumentTable):
    """Tokenized documents in memory."""

    def __init__(self, values: Mapping[str, Values], columns: Sequence[Column]):
        """Initializes the table.

        Args:
          values: values of `tokens` and of each column, by name. Starts are counted from the first token of their
            document.
          columns: columns except the tokens.
        """
        tokens = values["tokens"]
        assert tokens.sizes is not None, "tokens have no sizes"
        self._tokens = tokens.flat
        self.documents = np.append(0, np.cumsum(tokens.sizes)).astype(np.int64)
        self.num_documents, self.num_tokens = len(tokens.sizes), len(tokens.flat)
        self._values = values
        self._columns = {column.name: column for column in columns}

    @override
    def tokens(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]

    @override
    def has(self, name: str) -> bool:
        return name in self._columns

    @override
    def column(self, name: str) -> np.ndarray:
        flat, sizes = self._values[name]
        if self._columns[name].kind != "start" or sizes is None:
            return flat
        return flat + np.repeat(self.documents[:-1], sizes)

    def of_document(self, name: str, number: int) -> np.ndarray:
        """Returns the values of a column for one document.

        A column of the kind `document` has a single value. Values of the kind `start` are counted from the document's
        first token.
        """
        flat, sizes = self._values[name]
        if sizes is None:
            return flat[number]
        end = int(sizes[: number + 1].sum())
        return flat[end - int(sizes[number]) : end]
