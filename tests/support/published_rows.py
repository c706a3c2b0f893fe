"""Reference implementations of the rows of each family, written from the rules of its published code.

A document is a list of sentences, a sentence a list of tokens. A rule returns rows of at most `length` tokens, each a
dictionary: `tokens` without padding, and, if the family has them, `types`, `positions` and `segments` of the same
length, and `learnt`, whether the token is predicted. Ids are those of the published vocabularies.
"""

import math

import numpy as np


def flat(document):
    return [token for sentence in document for token in sentence]


def packed(begin, end, apart=False):
    """Decoders: concatenated documents, each between `begin` and `end`. A row has inputs and their next tokens.

    With `apart`, no token is predicted from another document, and positions restart with each document.
    """

    def rows(documents, length, rng):
        del rng
        stream = [(t, n) for n, d in enumerate(documents) for t in [*begin, *flat(d), *end]]
        examples = []
        for start in range(0, len(stream) - 1, length):
            inputs, following = stream[start : start + length], stream[start + 1 : start + length + 1]
            inputs = inputs[: len(following)] if not apart else inputs
            row = {"tokens": [t for t, _ in inputs]}
            row["learnt"] = [a[1] == b[1] or not apart for a, b in zip(inputs, following, strict=False)]
            row["learnt"] += [False] * (len(inputs) - len(following))
            if apart:
                row["segments"] = [n - inputs[0][1] + 1 for _, n in inputs]
                begins = [i for i, (_, n) in enumerate(inputs) if not i or n != inputs[i - 1][1]]
                row["positions"] = [i - max(b for b in begins if b <= i) for i in range(len(inputs))]
            examples.append(row)
        return examples

    return rows


def joined(num_tokens, end=(), begin=(), ends=()):
    """Documents, each followed by `end`, in rows of `num_tokens(length)` tokens between `begin` and `ends`."""

    def rows(documents, length, rng):
        del rng
        stream, size = [t for d in documents for t in [*flat(d), *end]], num_tokens(length)
        return [{"tokens": [*begin, *stream[i : i + size], *ends]} for i in range(0, len(stream), size)]

    return rows


def reused_halves(end):
    """zihangdai/xlnet, data_utils.py: the first halves of rows, of which one begins every half row of the stream.

    Rows in which the text ends are left out. The other halves are compared with a re-implementation in
    tests/data/test_pair_streams.py.
    """

    def rows(documents, length, rng):
        halves = joined(lambda length: length // 2, end=[end])(documents, length, rng)
        num_tokens = sum(len(row["tokens"]) for row in halves)
        return halves[: (num_tokens - (length - 3)) // (length // 2) + 1]

    return rows


def xlm_stream(end, languages=True):
    """facebookresearch/XLM, xlm/data/dataset.py, StreamDataset, without the `</s>` before the first sentence.

    The test has one source of text, whose language is 0 if there are `languages`.
    """

    def rows(documents, length, rng):
        blocks = joined(lambda length: length, end=[end])(documents, length, rng)
        return [row | ({"types": [0] * len(row["tokens"])} if languages else {}) for row in blocks]

    return rows


def separate(end):
    """Blocks of the stream in which documents do not attend to each other: the demo's masked models."""

    def rows(documents, length, rng):
        del rng
        stream = [(t, n) for n, d in enumerate(documents) for t in [*flat(d), *end]]
        blocks = (stream[i : i + length] for i in range(0, len(stream), length))
        return [{"tokens": [t for t, _ in b], "segments": [n - b[0][1] + 1 for _, n in b]} for b in blocks]

    return rows


def bert_pairs(cls, sep, swap=False):
    """google-research/bert and albert, create_pretraining_data.py: `create_instances_from_document`."""

    def rows(documents, length, rng):
        most, examples = length - 3, []
        for number, document in enumerate(documents):
            target = rng.randint(2, most) if rng.random() < 0.1 else most
            chunk, size, i = [], 0, 0
            while i < len(document):
                chunk.append(document[i])
                size += len(document[i])
                if i == len(document) - 1 or size >= target:
                    a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                    a, b, label = flat(chunk[:a_end]), [], 0
                    if len(chunk) == 1 or (not swap and rng.random() < 0.5):
                        label = 1
                        for _ in range(10):
                            other = rng.randint(0, len(documents) - 1)
                            if other != number:
                                break
                        for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                            b += sentence
                            if len(b) >= target - len(a):
                                break
                        i -= len(chunk) - a_end
                    else:
                        b = flat(chunk[a_end:])
                        if swap and rng.random() < 0.5:
                            a, b, label = b, a, 1
                    a, b = list(a), list(b)
                    while len(a) + len(b) > most:
                        longer = a if len(a) > len(b) else b
                        del longer[0 if rng.random() < 0.5 else -1]
                    types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
                    examples.append({"tokens": [cls, *a, sep, *b, sep], "types": types, "label": label})
                    chunk, size = [], 0
                i += 1
        return examples

    return rows


def electra_segments(cls, sep):
    """google-research/electra, build_pretraining_dataset.py: `ExampleBuilder`."""

    def rows(documents, length, rng):
        examples, target = [], length
        for document in documents:
            gathered = []
            for number, sentence in enumerate(document):
                gathered.append(sentence)
                if sum(map(len, gathered)) < target and number < len(document) - 1:
                    continue
                limit = 100_000 if rng.random() < 0.1 else (target - 3) // 2
                first, second = [], []
                for part in gathered:
                    fits = not first or len(first) + len(part) < limit
                    if fits or (not second and len(first) < limit and rng.random() < 0.5):
                        first = first + part
                    else:
                        second = second + part
                first = first[: length - 2]
                second = second[: max(0, length - len(first) - 3)]
                tokens, types = [cls, *first, sep], [0] * (len(first) + 2)
                if second:
                    tokens, types = [*tokens, *second, sep], types + [1] * (len(second) + 1)
                examples.append({"tokens": tokens, "types": types})
                gathered, target = [], rng.randint(5, length) if rng.random() < 0.05 else length
        return examples

    return rows


def distilbert_lines(cls, sep, unk):
    """huggingface/transformers, distillation/lm_seqs_dataset.py, with one line per document."""

    def rows(documents, length, rng):
        del rng
        examples = []
        for document in documents:
            line = [cls, *flat(document), sep]
            if len(line) <= length:
                pieces = [line]
            else:
                pieces = [line[i : i + length - 2] for i in range(0, len(line), length - 2)]
                pieces = [piece if piece[0] == cls else [cls, *piece] for piece in pieces]
                pieces = [piece if piece[-1] == sep else [*piece, sep] for piece in pieces]
            examples += [p for p in pieces if len(p) > 11 and p.count(unk) / len(p) < 0.5]
        return [{"tokens": piece} for piece in examples]

    return rows


def next_fit(rule):
    """Joins the rows of a rule in order, as many as fit, each a segment of its own."""

    def rows(documents, length, rng):
        examples, size = [], length
        for row in rule(documents, length, rng):
            tokens = row["tokens"]
            if size + len(tokens) > length:
                examples.append({"tokens": [], "segments": []})
                size = 0
            packed, number = examples[-1], max(examples[-1]["segments"], default=0) + 1
            packed["tokens"] = packed["tokens"] + tokens
            packed["segments"] = packed["segments"] + [number] * len(tokens)
            size += len(tokens)
        return examples

    return rows


def fairseq_blocks(bos, eos, mode, separator):
    """facebookresearch/fairseq, TokenBlockDataset with `complete` or `complete_doc`; long sentences are split."""

    def rows(documents, length, rng):
        del rng
        examples, row, room = [], [], length - 2

        def flush():
            if row:
                examples.append({"tokens": [bos, *row, eos]})
                row.clear()

        for document in documents:
            is_first = True
            for sentence in document:
                for i in range(0, len(sentence), room):
                    piece = sentence[i : i + room]
                    between = separator if row and is_first else []
                    if len(row) + len(between) + len(piece) > room:
                        flush()
                        between = []
                    row += [*between, *piece]
                    is_first = False
            if mode == "complete_doc":
                flush()
        flush()
        return examples

    return rows


def spanbert_documents(cls, sep):
    """facebookresearch/SpanBERT, no_nsp_span_bert_dataset.py, BlockDataset with `doc`.

    A chunk reaches from its first to its last token. A sentence too long for a row is never added, but a chunk that
    skips it counts its tokens. At the end of a document the source drops the chunk before such a sentence; here it is
    a row.
    """

    def rows(documents, length, rng):
        del rng
        examples, room = [], length - 2
        for document in documents:
            edges = np.cumsum([0, *map(len, document)]).tolist()
            tokens, fits = flat(document), [len(sentence) <= room for sentence in document]
            first = 0
            while first < len(document):
                last = first
                while last + 1 < len(document) and fits[last + 1] and edges[last + 2] - edges[first] <= room:
                    last += 1
                if fits[first]:
                    examples.append({"tokens": [cls, *tokens[edges[first] : edges[last + 1]], sep]})
                    first = last + 1
                else:
                    first += 1
        return examples

    return rows


def bilm_stream(bos, eos):
    """allenai/bilm-tf, bilm/data.py, read forward: `<S>` and the words, and the next words up to `</S>`."""

    def rows(documents, length, rng):
        del rng
        words = [pair for d in documents for pair in zip([bos, *flat(d)], [*flat(d), eos], strict=True)]
        cut = (words[i : i + length] for i in range(0, len(words), length))
        return [{"tokens": [a for a, _ in row], "next": [b for _, b in row]} for row in cut]

    return rows


def span_text(length, density=0.15, mean=3.0):
    """t5/data/preprocessors.py, `random_spans_helper`: number of tokens for a row of inputs."""

    def inputs(n):
        noise = min(max(round(n * density), 1), n - 1)
        return n - noise + max(1, round(noise / mean)) + 1

    n = length
    while inputs(n + 1) <= length:
        n += 1
    return n


def text_to_text(target_length, end):
    """Examples of inputs and targets, each followed by `end`, packed into rows (seqio's packing)."""

    def rows(documents, length, rng):
        del rng
        examples = []
        for inputs, targets in documents:
            parts = [*inputs[: length - 1], end], [*targets[: target_length - 1], end]
            last = examples[-1] if examples else None
            fits = last and len(last["tokens"]) + len(parts[0]) <= length
            if not fits or len(last["next"]) + len(parts[1]) > target_length:
                examples.append({"tokens": [], "segments": [], "next": []})
            last = examples[-1]
            last["segments"] += [1 + max(last["segments"], default=0)] * len(parts[0])
            last["tokens"] += parts[0]
            last["next"] += parts[1]
        return examples

    return rows


def shares(rows, cls, sep, length):
    """Returns statistics of random rows: name → one number per row."""

    def of(row):
        tokens, types = row["tokens"], row["types"]
        second = sum(types)
        return {
            "begins with cls": tokens[0] == cls,
            "ends with sep": tokens[-1] == sep,
            "is full": len(tokens) == length,
            "is below half": len(tokens) < length / 2,
            "has a second segment": second > 0,
            "types are one after another": types == sorted(types),
            "the first type ends with sep": tokens[types.index(1) - 1 if second else -1] == sep,
            "second segment is the longer": second > len(types) - second,
            "second segment is below a quarter": second < len(types) / 4,
            "separators": tokens.count(sep) == 2 - (second == 0),
            "label": row.get("label", 0),
        }

    statistics = [of(row) for row in rows]
    return {name: np.array([row[name] for row in statistics], float) for name in statistics[0]}


def within(got, want, errors=3.0):
    """Whether the means of two samples differ by at most `errors` standard errors."""
    error = math.sqrt(got.var() / len(got) + want.var() / len(want))
    return abs(got.mean() - want.mean()) <= errors * error
