"""Texts to the cache: tokenize, shuffle documents once, write; in bounded memory and to the same bytes every time.

    caches.py      which caches sources need
    build.py       the cache of one source, from these parts:
    reading.py     its documents, in order
    groups.py      held-out rows, and rows that are in both splits
    tokenizing.py  tokens and columns of batches of documents, by a process a core (`workers.py`)
    shuffle.py     tokenised documents in files chosen by a hash, and from there to the cache
    beam.py        the same on Apache Beam (`runners.py`)

Documents stream from the source, are tokenised in batches and spilled to `shuffle.NUM_SHARDS` files chosen by a hash;
then the held-out groups are known, and each shard is read, sorted by the hash and written. The order is pseudo-random
but does not depend on the number of processes. Memory holds some batches, and later the positions of the documents of
one shard.
"""
