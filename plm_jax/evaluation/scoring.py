"""Perplexities of whole texts, scored in sliding windows by decoders or one masked token at a time by encoders."""

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
      limit: number of texts that are scored, from the first; None for all.
    """

    stride: int | None
    limit: int | None = None


class TextWindow(NamedTuple):
    """Span of a text's tokens and the tokens that the model reads before it."""

    context: list[int]
    tokens: list[int]


def windows(tokens: Sequence[int], prefix: int, context: int, stride: int) -> Iterator[TextWindow]:
    """Yields windows of at most `context` tokens, in which each token of a text is scored once.

    In the first window, all tokens that fit are scored. In each further window, the next `stride` tokens are scored (in
    the last window, the remaining ones), after as many earlier tokens as fit. The windows are those of lm-eval's
    `get_rolling_token_windows`, with disjoint scored tokens.

    Args:
      prefix: id of the token that the model reads before a text.
      context: number of tokens that the model reads.
      stride: number of tokens by which windows move, 1 to `context`; larger ones would skip tokens.

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
    """Returns the perplexities of the documents of a task: `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Each original text is read separately, so no cache is needed and models with different vocabularies can be compared.

    Raises:
      UserError: a source or split is unknown or has no documents, the stride is invalid, or the model scores no texts.
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
    """Returns the perplexities of the files that a pattern matches. Each file is one text.

    Files without text are skipped.

    Raises:
      UserError: no file matches or has text, the stride is invalid, or the model does not score texts.
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
    """Returns the documents of a split; sources without validation data are split as `prepare` splits them."""
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
    """Returns how many tokens a model reads at once: its positions, its designed length or its run's row length."""
    known = lm.config.num_positions or lm.config.max_length
    return known or (ANY_LENGTH if lm.run is None else max(lm.run.data.length, 1))


class TextScore(NamedTuple):
    """Log-likelihood of a text in nats, and its number of tokens."""

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
    """Returns perplexities per token, word and byte, and bits per byte.

    Words are separated by white space, and bytes are those of UTF-8, as in lm-eval, so that vocabularies can be
    compared.
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
