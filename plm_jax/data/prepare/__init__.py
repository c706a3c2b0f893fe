"""Preparation of caches: tokenizes texts, shuffles documents once and writes them, in bounded memory.

    caches.py      caches that sources need
    similar_words_file.py  table of similar words, from a text file
    build.py       cache of one source, built with these modules:
    reading.py     documents of a source, in order
    segmenters.py  users' functions that find words in languages without spaces
    groups.py      held-out rows, and rows that are in both splits
    tokenizing.py  tokens and columns of batches of documents, with a process per core (`common/workers.py`)
    shuffle.py     files of tokenized documents, chosen by a hash, from which the cache is written
    stages.py      tokenization on an engine, as tasks over files (`common/tasks.py`)

Documents stream from the source, are tokenized in batches and written to `shuffle.NUM_SHARDS` files chosen by a hash.
Then it is known which groups are held out, and each of these files is read, sorted by the hash and written to the
cache. The order is pseudo-random and does not depend on the number of processes: the same sources give the same bytes.
Memory holds a few batches, and later the positions of the documents of one file.

This single pass is the default, because all cores tokenize even a single file. An engine divides the source by files,
and reads everything twice: first to count the documents of each file.
"""
