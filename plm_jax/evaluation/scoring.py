"""Perplexities of whole texts. Decoders score windows of tokens; masked models score one masked token at a time."""

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

# Context length of models that define none.
ANY_LENGTH = 2048
# Number of rows in memory: a masked model reads one row per token, each as long as a window.
_ROWS_AT_ONCE = 4096


class TextScoring(NamedTuple):
    """Settings for scoring whole texts.

    Attributes:
      stride: number of tokens by which windows move; None for disjoint windows.
      limit: maximum number of texts; the first texts are scored. None for all.
    """

    stride: int | None
    limit: int | None = None


class TextWindow(NamedTuple):
    """Span of the tokens of a text, with its context.

    Attributes:
      context: tokens that the model reads before the span.
      tokens: tokens of the span.
    """

    context: list[int]
    tokens: list[int]


def windows(tokens: Sequence[int], prefix: int, context: int, stride: int) -> Iterator[TextWindow]:
    """Yields windows in which each token of a text is scored once.

    In the first window, all tokens that fit are scored. In each later window, the next `stride` tokens are scored,
    after as many earlier tokens as fit. In the last window, only the remaining tokens are scored. The windows are those
    of lm-eval's `get_rolling_token_windows`, after `make_disjoint_window`.

    Args:
      prefix: id of the token that the model reads before a text.
      context: maximum number of tokens that the model reads at once.
      stride: number of tokens by which windows move, from 1 to `context`. A larger stride would skip tokens.

    Raises:
      UserError: the stride is out of range.
    """
    if not 1 <= stride <= context:
        raise UserError(f"the stride is {stride}, and the model's context has {context} tokens: use 1 to {context}")
    begin, end = 0, min(context, len(tokens))
    while begin < len(tokens):
        before = [prefix, *tokens[: end - 1]] if end <= context else tokens[end - 1 - context : end - 1]
        yield TextWindow(list(before[: len(before) - (end - begin - 1)]), list(tokens[begin:end]))
        begin, end = end, min(end + stride, len(tokens))


def evaluate(
    lm: LanguageModel, run: config.Run, task: str, text_scoring: TextScoring, show_progress: bool = True
) -> dict[str, float]:
    """Returns the perplexities of the documents of a task (`perplexities`). No cache is needed.

    Args:
      task: `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Raises:
      UserError: the source or split is unknown or has no documents, the stride is invalid, or the model cannot score
        texts.
    """
    name, split = perplexity.parse_task(run, task)
    _check_stride(lm, text_scoring)
    texts = list(itertools.islice(_texts(name, run, split), text_scoring.limit))
    if not any(texts):
        raise perplexity.NothingToPredictError(f"'{task}' has no text: name another split")
    with perplexity.progress_bar(f"{task}, stride {text_scoring.stride}", None, "row", show_progress) as progress_bar:
        return perplexities(texts, score_texts(lm, texts, text_scoring.stride, progress_bar.update))


def evaluate_files(
    lm: LanguageModel, pattern: str, text_scoring: TextScoring, show_progress: bool = True
) -> dict[str, float]:
    """Returns the perplexities of the files that match a pattern (`perplexities`). Each file is one text.

    Files without text are skipped.

    Raises:
      UserError: no file matches the pattern, no file has text, the stride is invalid, or the model cannot score texts.
    """
    _check_stride(lm, text_scoring)
    if not lm.strategy.is_masked:
        _ = lm.strategy.initial_ids  # Raises before any text is read if the model does not score texts.
    texts = [record.text for record in itertools.islice(files.read(config.TextFiles(pattern)), text_scoring.limit)]
    if not texts:
        raise perplexity.NothingToPredictError(f"the files of '{pattern}' have no text: name other files")
    with perplexity.progress_bar(pattern, None, "row", show_progress) as progress_bar:
        return perplexities(texts, score_texts(lm, texts, text_scoring.stride, progress_bar.update))


def _check_stride(lm: LanguageModel, text_scoring: TextScoring) -> None:
    """Rejects an invalid stride before texts are read."""
    if text_scoring.stride is not None:
        list(windows([0], 0, context_length(lm), text_scoring.stride))


def _texts(name: str, run: config.Run, split: str) -> Iterator[str]:
    """Returns the documents of a split. A source without validation data is split in the same way as by `prepare`."""
    source = run.data.sources[name]
    if isinstance(source, config.LabeledSource | config.InputsTargetsSource):
        raise UserError(f"'{name}' has examples instead of documents: leave out --stride, or name another task")
    if isinstance(source, config.TokenFiles):
        raise UserError(f"'{name}' has tokens instead of text: leave out --stride, or name another task")
    corpus = source.open(name)
    if split not in (*corpus.splits, "validation"):
        raise UserError(f"'{name}' has no split '{split}': {nearest(split, corpus.splits)}")

    def read(split_name: str) -> Iterator[Record]:
        return itertools.chain.from_iterable(corpus.read(split_name, shard) for shard in corpus.shards(split_name))

    if "validation" in corpus.splits:
        return (record.text for record in read(split))
    records = list(read("train"))
    held_out = reading.hold_out(records, run.data.validation_fraction)
    is_validation = split == "validation"
    return (record.text for record, is_held_out in zip(records, held_out, strict=True) if is_held_out == is_validation)


def context_length(lm: LanguageModel) -> int:
    """Returns the number of tokens that a model reads at once.

    This is the first known number in this list: the model's number of positions; the row length that its position
    scheme is designed for; the row length of its run; `ANY_LENGTH`.
    """
    known = lm.config.num_positions or lm.config.max_length
    return known or (ANY_LENGTH if lm.run is None else max(lm.run.data.length, 1))


class TextScore(NamedTuple):
    """Score of a text.

    Attributes:
      log_likelihood: log-likelihood of the text, in nats.
      tokens: number of tokens of the text.
    """

    log_likelihood: float
    tokens: int


def score_texts(
    lm: LanguageModel, texts: Sequence[str], stride: int | None = None, advance: Callable[[int], Any] = ignore_progress
) -> list[TextScore]:
    """Scores texts in `windows` of the model's `context_length`; each token is scored once.

    A decoder scores a token given the tokens before it. A masked model scores each token given every other token of its
    window, except the later pieces of the same word.

    Args:
      stride: number of tokens by which windows move; None for disjoint windows.
      advance: called with the number of rows of each finished batch.

    Raises:
      UserError: the stride is invalid, the model is neither a decoder nor a masked model, or it has no vocabulary.
    """
    sums, counts = [0.0] * len(texts), [0] * len(texts)
    numbered_rows = ((i, row) for i, text in enumerate(texts) for row in _rows(lm, lm.tokenizer.encode(text), stride))
    while chunk := list(itertools.islice(numbered_rows, _ROWS_AT_ONCE)):
        scores = score_rows(lm.strategy, [row for _, row in chunk], advance)
        for (i, row), scored in zip(chunk, scores, strict=True):
            sums[i] += scored.score.log_likelihood
            counts[i] += len(row.targets)
    return list(map(TextScore, sums, counts))


def _rows(lm: LanguageModel, tokens: Sequence[int], stride: int | None) -> Iterator[ScoringRow]:
    """Yields the rows in which a model scores the tokens of a text."""
    strategy, context = lm.strategy, context_length(lm)
    if not strategy.is_masked:
        for window in windows(tokens, strategy.initial_ids[-1], context, context if stride is None else stride):
            yield strategy.continuation_row(*window)
        return
    context -= sum(map(len, strategy.frame))
    for window in windows(tokens, 0, context, context if stride is None else stride):
        window_tokens = [*window.context, *window.tokens][1:]  # Masked models need no token before the window.
        yield from strategy.masked_rows(window_tokens, len(window_tokens) - len(window.tokens), word_l2r=True)


def perplexities(texts: Sequence[str], scores: Sequence[TextScore]) -> dict[str, float]:
    """Returns perplexities per token, word and byte; bits per byte; and the numbers of texts, tokens, words and bytes.

    As in lm-eval, words are separated by white space, and bytes are those of UTF-8. Models with different vocabularies
    can be compared by their metrics per word or byte. Perplexities that are too large for a float are left out.
    """
    nats = -math.fsum(score.log_likelihood for score in scores)
    counts = {
        "token": sum(score.tokens for score in scores),
        "word": sum(len(re.split(r"\s+", text)) for text in texts),
        "byte": sum(len(text.encode("utf-8")) for text in texts),
    }
    metrics: dict[str, float] = {"texts": len(texts)}
    metrics |= {f"{unit}s": number for unit, number in counts.items()}
    nats_per_unit = {unit: nats / number for unit, number in counts.items()}
    # Perplexities that overflow a float, such as those of long words under a poor model, are left out.
    metrics |= {
        f"{unit}_perplexity": math.exp(unit_nats) for unit, unit_nats in nats_per_unit.items() if unit_nats < 700
    }
    return metrics | {"bits_per_byte": nats_per_unit["byte"] / math.log(2)}
