"""How probable whole texts are to a model: by a window that slides over them, or one masked token after another."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.prepare import reading
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Record
from plm_jax.evaluation import perplexity
from plm_jax.generation.scoring import ignore_progress, score_rows
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.inference.language_model import LanguageModel

# Where nothing says how long a row a model is meant for.
ANY_LENGTH = 2048
# A masked model's rows are as many as there are tokens, each as long as a window.
_ROWS_AT_ONCE = 4096


class TextScoring(NamedTuple):
    """How whole texts are told.

    Attributes:
      stride: number of tokens by which windows are moved; None for their length.
      limit: only so many of the first texts; None: all.
    """

    stride: int | None
    limit: int | None = None


class TextWindow(NamedTuple):
    """A stretch of a text's tokens and what a model reads before it."""

    context: list[int]
    tokens: list[int]


def windows(tokens: Sequence[int], prefix: int, context: int, stride: int) -> Iterator[TextWindow]:
    """The windows in which a model that reads `context` tokens tells each token of a text once.

    The first has as many as fit; each further one is moved by `stride`, the last by what is left, and reads as much
    before its new tokens as fits. They are those of lm-eval's `get_rolling_token_windows`, disjoint.

    Args:
      prefix: what the model reads before a text.

    Raises:
      UserError: a stride that is not 1 to `context`; a larger one would leave out tokens.
    """
    if not 1 <= stride <= context:
        raise UserError(f"the stride is {stride}, the model reads {context} tokens: give 1 to {context}")
    begin, end = 0, min(context, len(tokens))
    while begin < len(tokens):
        before = [prefix, *tokens[: end - 1]] if end <= context else tokens[end - 1 - context : end - 1]
        yield TextWindow(list(before[: len(before) - (end - begin - 1)]), list(tokens[begin:end]))
        begin, end = end, min(end + stride, len(tokens))


def evaluate(
    lm: LanguageModel, run: config.Run, task: str, whole: TextScoring, show_progress: bool = True
) -> dict[str, float]:
    """The perplexities of the documents of one `SOURCE` (its validation split) or `SOURCE:SPLIT` of `run.data`.

    The texts are read as they are, each for itself: no cache is needed, and vocabularies can be compared.

    Raises:
      UserError: a source or split is unknown or has no documents, the stride is invalid, or the model scores no texts.
    """
    name, split = perplexity.split_of(run, task)
    _check_stride(lm, whole)
    texts = list(itertools.islice(_texts(name, run, split), whole.limit))
    if not any(texts):
        raise perplexity.NothingToPredictError(f"'{task}' has no text: name another split")
    with perplexity.bar(f"{task}, stride {whole.stride}", None, "row", show_progress) as bar:
        return perplexities(texts, score_texts(lm, texts, whole.stride, bar.update))


def evaluate_files(lm: LanguageModel, pattern: str, whole: TextScoring, show_progress: bool = True) -> dict[str, float]:
    """Returns the perplexities of the files that a pattern matches. Each file is one text.

    Files without text are skipped.

    Raises:
      UserError: no file matches or has text, the stride is invalid, or the model does not score texts.
    """
    _check_stride(lm, whole)
    if not lm.strategy.is_masked:
        _ = lm.strategy.initial_ids  # Raises before any text is read if the model does not score texts.
    texts = [record.text for record in itertools.islice(files.read(config.TextFiles(pattern)), whole.limit)]
    if not texts:
        raise perplexity.NothingToPredictError(f"the files of '{pattern}' have no text: name others")
    with perplexity.bar(pattern, None, "row", show_progress) as bar:
        return perplexities(texts, score_texts(lm, texts, whole.stride, bar.update))


def _check_stride(lm: LanguageModel, whole: TextScoring) -> None:
    """Rejects an invalid stride before texts are read."""
    if whole.stride is not None:
        list(windows([0], 0, context_length(lm), whole.stride))


def _texts(name: str, run: config.Run, split: str) -> Iterator[str]:
    """The documents of a source's split; where it has none for validation, those that `prepare` holds out, or not."""
    source = run.data.sources[name]
    if isinstance(source, config.LabelledSource | config.InputsTargetsSource):
        raise UserError(f"'{name}' has examples and no documents: leave out --stride, or name another task")
    corpus = source.open(name)
    if split not in (*corpus.splits, "validation"):
        raise UserError(f"'{name}' has no split '{split}': {nearest(split, corpus.splits)}")

    def read(of: str) -> Iterator[Record]:
        return itertools.chain.from_iterable(corpus.read(of, shard) for shard in corpus.shards(of))

    if "validation" in corpus.splits:
        return (record.text for record in read(split))
    records = list(read("train"))
    held_out = reading.hold_out(records, run.data.validation_fraction)
    is_validation = split == "validation"
    return (record.text for record, is_held_out in zip(records, held_out, strict=True) if is_held_out == is_validation)


def context_length(lm: LanguageModel) -> int:
    """How many tokens a model reads at once: its positions, else what it is meant for, else its run's rows."""
    known = lm.config.num_positions or lm.config.max_length
    return known or (ANY_LENGTH if lm.run is None else max(lm.run.data.length, 1))


class TextScore(NamedTuple):
    """Of a text the log-likelihood, nats, and how many tokens it has."""

    log_likelihood: float
    tokens: int


def score_texts(
    lm: LanguageModel, texts: Sequence[str], stride: int | None = None, advance: Callable[[int], Any] = ignore_progress
) -> list[TextScore]:
    """Scores texts in `windows` of the model's `context_length`; each token is scored once.

    A decoder scores a token given the tokens before it. A masked model scores each token given every other token of its
    window, except the later pieces of the same word.

    Args:
      stride: number of tokens by which windows move; None for their length, so that each token is read once.
      advance: called with the number of rows of each finished batch.

    Raises:
      UserError: the stride is invalid, or the model is neither a decoder nor masked.
    """
    sums, counts = [0.0] * len(texts), [0] * len(texts)
    left = ((i, row) for i, text in enumerate(texts) for row in _rows(lm, lm.tokenizer.encode(text), stride))
    while some := list(itertools.islice(left, _ROWS_AT_ONCE)):
        told = score_rows(lm.strategy, [row for _, row in some], advance)
        for (i, row), of in zip(some, told, strict=True):
            sums[i] += of.score.log_likelihood
            counts[i] += len(row.targets)
    return list(map(TextScore, sums, counts))


def _rows(lm: LanguageModel, tokens: Sequence[int], stride: int | None) -> Iterator[ScoringRow]:
    """What a model reads to tell the tokens of a text."""
    strategy, context = lm.strategy, context_length(lm)
    if not strategy.is_masked:
        for window in windows(tokens, strategy.initial_ids[-1], context, context if stride is None else stride):
            yield strategy.continuation_row(*window)
        return
    context -= sum(map(len, strategy.frame))
    for window in windows(tokens, 0, context, context if stride is None else stride):
        seen = [*window.context, *window.tokens][1:]  # Nothing is read to predict the first one.
        yield from strategy.masked_rows(seen, len(seen) - len(window.tokens), word_l2r=True)


def perplexities(texts: Sequence[str], told: Sequence[TextScore]) -> dict[str, float]:
    """The perplexities of texts by token, word and byte, and the bits a byte, from what is told of each.

    Words are what white space parts and bytes those of UTF-8, as in lm-eval, so that vocabularies can be compared.
    """
    nats = -math.fsum(of.log_likelihood for of in told)
    counts = {
        "token": sum(of.tokens for of in told),
        "word": sum(len(re.split(r"\s+", text)) for text in texts),
        "byte": sum(len(text.encode("utf-8")) for text in texts),
    }
    found: dict[str, float] = {"texts": len(texts)}
    found |= {f"{unit}s": number for unit, number in counts.items()}
    nats_of = {unit: nats / number for unit, number in counts.items()}
    # What is too much for a number, as of long words by a model without a clue, is left out.
    found |= {f"{unit}_perplexity": math.exp(each) for unit, each in nats_of.items() if each < 700}
    return found | {"bits_per_byte": nats_of["byte"] / math.log(2)}
