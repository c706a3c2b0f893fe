"""Reader of batches from the cache, through Grain: example k is a pure function of (config, seed, k).

A training process imports neither seqio nor TensorFlow.
"""

import bisect
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from absl import flags

from plm_jax import objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.common.phases import Phase
from plm_jax.common.special_ids import NAMES, SpecialIds
from plm_jax.data import cache, layouts, mixtures, vocabularies
from plm_jax.data.cache import similar_words
from plm_jax.data.config import DataConfig, ReaderConfig
from plm_jax.data.layouts import inputs_targets, noising
from plm_jax.data.padding import Padding, count_padding
from plm_jax.data.sources.source import InputsTargetsSource
from plm_jax.data.vocabularies import words

Example = layouts.Example
HostRows = Callable[[int], Sequence[int]]
PhaseRows = Callable[[Phase], Sequence[int]]

# Number of rows from which a run estimates its padding and its share of tokens in words too long to be masked.
_SAMPLE = 512
# Smallest share of such tokens that is reported.
_LEFT_OUT = 0.01
# Number of rows of remote caches that are fetched concurrently.
_FETCHERS = 32
_AGAIN = "run `python -m plm_jax prepare --config=…` again"


@dataclass(frozen=True)
class _Segment:
    """Reading order of a phase.

    Example k of the run is example `k - base` of the mixture. The position of an example in the order of its source is
    its index among the examples that the mixture reads from the source, plus the source's entry in `offsets`.
    """

    phase: Phase
    rates: dict[str, float]
    mixture: mixtures.Mixture
    base: int
    orders: dict[str, layouts.RowOrder]
    offsets: dict[str, int]
    objective: objectives.BoundObjective

    def positions(self, k: int) -> dict[str, int]:
        """Returns, for each source, the position of the first of its items that is read at or after example k."""
        counts = self.mixture.counts(k - self.base)
        return {name: offset + counts.get(name, 0) for name, offset in self.offsets.items()}


class Reader:
    """Reader of the examples and batches of a run.

    Attributes:
      sources: opened caches of the sources.
      objective: objective of validation and evaluation.
      identities: identities of the caches, and of the table of similar words if an objective reads this table.
      vocabulary: description of the vocabulary, from the manifests of the caches.
    """

    def __init__(self, settings: ReaderConfig, share: float = 1.0):
        """Opens the caches.

        Args:
          share: share of each batch's rows that this process reads, between 0 and 1. From a remote cache, the process
            fetches little more than this share.

        Raises:
          UserError: a cache is missing or damaged, was made with other settings, has no training split or is too small
            for one row, or the model's embedding is smaller than the vocabulary.
        """
        self._settings, self._share = settings, share
        self._data, self._phases, self._seed = settings.data, settings.phases, settings.seed
        folder, window = self._data.cache_dir, 3 * self._data.window_tokens
        self.sources = {name: cache.open_source(folder, name, window, share) for name in settings.sources}
        self.identities = {name: source.identity for name, source in self.sources.items()}
        self.vocabulary = _check_vocabulary(settings, self.sources)
        _check_segmenters(self._data.segmenters, self.sources)
        for name, source in self.sources.items():
            if "train" not in source.splits:
                raise UserError(f"the cache of '{name}' has no training split: {_AGAIN}")
            if source.has_inputs_targets != isinstance(self._data.sources[name], InputsTargetsSource):
                raise UserError(
                    f"the cache of '{name}' was prepared for another kind of source than that in the config: {_AGAIN}"
                )
        special = self._with_similar_words(_special_ids(self.vocabulary))
        self.objective = objectives.BoundObjective(settings.validation_objective, special)
        self._example_rows = settings.example_rows(special)
        self._rows = functools.cache(self._open)
        self._token_tables = functools.cache(self._open_token_tables)
        self._segments = self._plan()
        self._first_examples = [segment.phase.first_example for segment in self._segments]

    def __reduce__(self):
        """Pickles only the constructor's arguments: the process that receives a reader opens the caches itself."""
        return Reader, (self._settings, self._share)

    def _plan(self) -> list[_Segment]:
        segments: list[_Segment] = []
        position = dict.fromkeys(self.sources, 0)
        orders: dict[str, layouts.RowOrder] = {}
        for phase in self._phases:
            rates = self._rates(phase)
            mixture = mixtures.Mixture(rates)
            last = segments[-1] if segments else None
            if last:
                position |= last.positions(phase.first_example)
            orders_before, orders = orders, {name: self._order(name, phase) for name in self.sources}
            if last:
                position = {name: orders[name].resume(k, orders_before[name]) for name, k in position.items()}
            base = last.base if last and rates == last.rates else phase.first_example
            counts = mixture.counts(phase.first_example - base)
            offsets = {name: k - counts.get(name, 0) for name, k in position.items()}
            segments.append(_Segment(phase, rates, mixture, base, orders, offsets, self._objective(phase)))
        return segments

    def _rates(self, phase: Phase) -> dict[str, float]:
        """Returns the relative rate of each source, in rows.

        A rate in the config is divided by the number of examples per row. Without rates in the config, the rates are
        the numbers of training tokens, or the numbers of rows if a source has inputs and targets.

        Raises:
          UserError: the config lacks a source of the phase, whose number of examples per row is therefore unknown.
        """
        if not (phase.mixture or any(source.has_inputs_targets for source in self.sources.values())):
            # Sources of text and of records are not mixed by tokens (`config.checks`), whose rows differ in size.
            return {name: source.splits["train"].num_tokens for name, source in self.sources.items()}
        rates, absent = {}, [name for name in phase.mixture if name not in self.sources]
        if absent and (
            self._data.inputs_targets.packed
            or any(self.training_rows(name, phase).examples_per_row != 1 for name in self.sources)
        ):
            raise UserError(
                f"the run was trained on '{absent[0]}', which the config lacks, so its number of examples per row and "
                f"the positions in the other sources are unknown: keep '{absent[0]}' in config.data"
            )
        for name in dict.fromkeys([*phase.mixture, *self.sources]):
            if name not in self.sources:
                rates[name] = phase.mixture[name]
                continue
            rows = self.training_rows(name, phase)
            rate = phase.mixture.get(name, 0.0) / rows.examples_per_row
            rates[name] = rate if phase.mixture else rows.num_rows
        return rates

    def _objective(self, phase: Phase) -> objectives.BoundObjective:
        """Returns the objective of a phase."""
        return objectives.BoundObjective(self._settings.in_phase(phase), self.objective.special)

    def rows(self, split: str, name: str, length: int) -> layouts.Rows:
        """Returns the rows of `length` tokens of a source's split, for validation and evaluation."""
        return self._rows(split, name, length, self.objective)

    def training_rows(self, name: str, phase: Phase) -> layouts.Rows:
        """Returns the rows of a source's training split in a phase."""
        return self._rows("train", name, phase.length, self._objective(phase))

    def _open(self, split: str, name: str, length: int, objective: objectives.BoundObjective) -> layouts.Rows:
        """Returns a source's split as rows of `length` tokens."""
        layout, source = self._data.layout, self.sources[name]
        if source.has_inputs_targets:
            packed = self._data.inputs_targets.packed
            assert self._example_rows is not None
            return inputs_targets.InputsTargetsRows(source.splits[split], self._example_rows, length, packed)
        characters = self._spelling if layout.reads_characters(objective.settings) else None
        types = self._data.token_types
        request = layouts.RowRequest.of(source, split, length, objective, self._seed, characters, types)
        rows = layout.open(request)
        rows.constants = _constants(self._data, name, length)
        return rows

    @functools.cached_property
    def _spelling(self) -> np.ndarray:
        """Characters of each word, [vocab_size, C]."""
        return words.spelling(self._data.cache_dir, self.vocabulary, self._settings.max_characters)

    def _with_similar_words(self, special: objectives.Special) -> objectives.Special:
        """Returns the special ids with the table of similar words, if an objective reads this table."""
        if not any(objective.similar_share for objective in self._settings.all_objectives):
            return special
        data = self._data
        opened = similar_words.load(data.cache_dir, data.similar_words, self.vocabulary["id"])
        self.identities[similar_words.NAME], table = opened
        return dataclasses.replace(special, similar_words=table)

    def _open_token_tables(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns two arrays [vocab_size]: whether each id begins a word, and how often the id occurs in training data.

        The second array is None if no objective reads it.
        """
        source, counts = self.sources[name], None
        if any("token_counts" in objective.reads for objective in self._settings.all_objectives):
            counts = source.splits["train"].unigram
        return source.word_initial, counts

    def _order(self, name: str, phase: Phase) -> layouts.RowOrder:
        """Returns the order of a source's training examples in a phase."""
        rows = self.training_rows(name, phase)
        layout, window, seed = self._data.layout, self._data.window_tokens, self._seed
        if self.sources[name].has_inputs_targets:
            order = layouts.Order(rows, window, seed, name)
        else:
            order = layout.order(rows, window, phase.batch_size, seed, name)
        if layout.continues_rows and isinstance(order, layouts.Order):
            raise UserError(
                f"config.data.layout '{layout.kind}' sets `continues_rows`, but the order of its rows is shuffled: "
                "define an `order` in which row r of a batch continues row r of the previous batch"
            )
        if not order.num_items:
            raise UserError(f"source '{name}' {order.shortage()}")
        return order

    def example(self, k: int) -> Example:
        """Returns example k of the run, with the row length of its phase."""
        return self._make(*self._draw(k))

    def _draw(self, k: int) -> tuple[objectives.BoundObjective, str, layouts.Rows, int, np.random.Generator]:
        """Returns the objective, source, rows of the source, row index and random generator of example k."""
        segment = self._segments[bisect.bisect_right(self._first_examples, k) - 1]
        name, index = segment.mixture.locate(k - segment.base)
        order, number, seed = segment.orders[name], segment.offsets[name] + index, self._seed
        item, rng = order.item(number), layouts.generator(seed, "train", k)
        if segment.objective.duplicates:
            draw = order.epoch(number) % segment.objective.duplicates
            rng = layouts.generator(seed, f"static/{name}", item, draw, segment.phase.length)
        return segment.objective, name, order.rows, item, rng

    def origin(self, k: int) -> tuple[str, list[int]]:
        """Returns the source of example k, and the indices of the example's documents in the source's training split.

        There are no indices if the layout does not know the documents of its rows.
        """
        _, name, rows, item, rng = self._draw(k)
        return name, list(rows.documents(item, rng))

    def examples_with(self, name: str, document: int, steps: int) -> Iterator[int]:
        """Yields, in order, the index k of each example that contains text of a training document of a source.

        Reads only the rows that may contain the document.

        Args:
          document: index of the document in the training split of the source.
          steps: number of steps; only the examples of the run's first `steps` steps are searched.

        Raises:
          UserError: the layout cannot find the rows of a document.
        """
        for segment in self._segments:
            phase, end_step = segment.phase, min(segment.phase.end_step, steps)
            if end_step <= phase.first_step or name not in segment.mixture.names:
                continue
            end = phase.first_example + (end_step - phase.first_step) * phase.batch_size
            first, last = (segment.positions(k)[name] for k in (phase.first_example, end))
            order, offset = segment.orders[name], segment.offsets[name]
            positions = [order.positions(rows, first, last) for rows in order.rows.rows_with(document)]
            for position in np.unique(np.concatenate(positions)).tolist():
                k = segment.base + segment.mixture.position(name, position - offset)
                if document in self.origin(k)[1]:
                    yield k

    def numbers(self, step: int) -> range:
        """Returns the indices of the examples in the batch of a step, in the order of the rows. Steps count from 0."""
        phase = self._phase(step)
        first = phase.first_example + (step - phase.first_step) * phase.batch_size
        return range(first, first + phase.batch_size)

    def locate(self, k: int) -> tuple[int, int]:
        """Returns the step that reads example k, and the row of the example in the batch. Both count from 0."""
        phase = self._segments[bisect.bisect_right(self._first_examples, k) - 1].phase
        step, row = divmod(k - phase.first_example, phase.batch_size)
        return phase.first_step + step, row

    def _make(
        self,
        objective: objectives.BoundObjective,
        name: str,
        rows: layouts.Rows,
        item: int,
        rng: np.random.Generator,
    ) -> Example:
        if rows.is_finished:
            return rows.example(item, rng)
        example = noising.make(objective, rows, item, rng, *self._token_tables(name))
        return example if self._example_rows is None else self._example_rows.align(example)

    def _phase(self, step: int) -> Phase:
        return next(phase for phase in reversed(self._phases) if phase.first_step <= step)

    def batch(self, step: int, rows: Sequence[int]) -> Example:
        """Returns the rows with the indices `rows` of the global batch of a step, as arrays [rows, …].

        Steps count from 0. The array `digest`, uint32 [rows, 3], has three numbers for each row: the low 16 bits and
        the high 16 bits of the row's checksum (`crcs`), and the number of padding tokens in the row.
        """
        first = self.numbers(step).start
        return _batch(self._make_all(self.example, [first + row for row in rows]))

    def batches(self, first_step: int, rows: PhaseRows | None = None) -> Iterator[Example]:
        """Iterates over the batches from `first_step`, counted from 0, to the last step.

        Batches are made in the background. Starting at a late step takes no longer than starting at the first one.

        Args:
          rows: function from a phase to the row indices that this host reads of each batch; all rows by default.
        """
        rows = rows or (lambda phase: range(phase.batch_size))
        # `rows` may refer to devices, which cannot be sent to other processes.
        chosen = {phase.first_step: rows(phase) for phase in self._phases if phase.end_step > first_step}

        def batch(step: int) -> Example:
            return self.batch(step, chosen[self._phase(step).first_step])

        data = self._data
        ahead = self._read_ahead(grain.MapDataset.range(first_step, self._phases[-1].end_step), batch)
        if data.processes:
            if not flags.FLAGS.is_parsed():  # Grain reads its own flags.
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(data.processes, max(1, data.prefetch // data.processes))
            # Batches go through pipes: Grain frees shared memory late, and containers have little of it.
            piped = grain.experimental.DatasetOptions(min_shm_size=2**62)
            # Silences warnings about resources that a process leaked when it ended with an error.
            sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
            ahead = grain.experimental.WithOptionsIterDataset(ahead, piped).mp_prefetch(options, _follow_parent)
        return iter(ahead)

    def _read_ahead(self, indices: grain.MapDataset, make: Callable[[int], Example]) -> grain.IterDataset:
        data = self._data
        options = grain.ReadOptions(num_threads=data.threads, prefetch_buffer_size=max(data.prefetch, data.threads))
        return indices.map(lambda i: make(int(i))).to_iter_dataset(options)

    @functools.cached_property
    def _fetchers(self) -> ThreadPoolExecutor | None:
        """Threads that fetch rows of a remote cache; None if the cache is local or this process reads all rows."""
        is_remote = self._share < 1 and storage.is_remote(self._data.cache_dir)
        return ThreadPoolExecutor(_FETCHERS) if is_remote else None

    def _make_all(self, make: Callable[[int], Example], numbers: Sequence[int]) -> list[Example]:
        """Returns `make(number)` for each number; the calls run concurrently if rows must be fetched."""
        return list((self._fetchers.map if self._fetchers else map)(make, numbers))

    def notes(self) -> list[str]:
        """Returns lines for the log of a run, such as the share of padding, or of words that are never masked."""
        # Earlier phases may have read sources that the config no longer has.
        phases = [segment.phase for segment in self._segments if segment.rates.keys() <= self.sources.keys()]
        first_phase = self._phases[0]
        notes = [note for name in self.sources for note in self.training_rows(name, first_phase).notes(name)]
        of_words = [phase for phase in phases if self._settings.in_phase(phase).whole_words]
        if of_words:
            share, length = max((self._share_left_out(phase), phase.length) for phase in of_words)
            if share >= _LEFT_OUT:
                notes.append(
                    f"{share:.1%} of the tokens in rows of {length} are never masked, because their words have more "
                    "tokens than a row has predictions: name a segmenter in config.data.segmenters, or set "
                    "config.objective.whole_words to 0"
                )
        if self._data.layout.is_full:
            return notes
        padding = [self.padding(phase).describe(phase.batch_size, phase.length) for phase in phases]
        return notes + [f"padding: {description}" for description in padding]

    def padding(self, phase: Phase) -> Padding:
        """Returns an estimate of the padding of a phase, from its first rows."""
        examples = (self.example(k) for k in _sample(phase))
        return Padding.of(examples, isinstance(self._data.layout, layouts.Packed))

    def _share_left_out(self, phase: Phase) -> float:
        """Returns the share of a phase's maskable tokens that are in words too long to be masked."""
        counts = []
        for k in _sample(phase):
            objective, name, rows, item, rng = self._draw(k)
            for inner in rows.inner_rows(item, rng):
                example = noising.read(objective, *inner, *self._token_tables(name))
                counts.append(objective.settings.count_unmaskable(example, objective.special))
        left_out, tokens = np.sum(counts, axis=0)
        return float(left_out / max(tokens, 1))

    def check_vocabulary(self) -> None:
        """Checks that the vocabulary in the cache folder is the one that the caches were made with.

        The check ends at the first missing file of the vocabulary.

        Raises:
          UserError: the vocabulary differs, or the config has different settings for it.
        """
        folder, section = os.path.join(self._data.cache_dir, "vocabulary"), self._settings.vocabulary
        for name, digest in self.vocabulary["files"].items():
            path = os.path.join(folder, name)
            if not storage.exists(path):
                return
            if storage.sha256(path) != digest:
                raise UserError(f"{path} is not the vocabulary that the caches were made with: {_AGAIN}")
        section = dataclasses.replace(section, spec=vocabularies.within(section.spec, folder))
        if vocabularies.identity(vocabularies.load_plain(section)) != self.vocabulary["id"]:
            raise UserError(
                "the caches were made with other settings of the vocabulary, such as config.vocabulary.train_kind or "
                f"added: undo the change, or {_AGAIN}"
            )

    def num_rows(self, split: str, name: str | None = None, length: int | None = None) -> dict[str, int]:
        """Returns, for each source with this split, the number of rows that `in_order` reads.

        Args:
          name: name of the only source to count; None: all sources.
          length: length of the rows; None: the length of the last phase.
        """
        names = [key for key, source in self.sources.items() if split in source.splits and name in (None, key)]
        length = self._phases[-1].length if length is None else length
        return {key: self.rows(split, key, length).num_rows for key in names}

    def num_batches(self, split: str, batch_size: int, name: str | None = None, length: int | None = None) -> int:
        """Returns the number of batches that `in_order` yields without `max_batches`.

        The arguments `name` and `length` are those of `num_rows`.
        """
        return -(-sum(self.num_rows(split, name, length).values()) // batch_size)

    def in_order(
        self,
        split: str,
        batch_size: int,
        rows: HostRows = range,
        name: str | None = None,
        length: int | None = None,
        max_batches: int | None = None,
    ) -> Iterator[Example]:
        """Iterates over the batches of a split once, in order. The noise of a row is keyed by the index of the row.

        If the number of rows is not a multiple of the batch size, rows of zeros are added, whose weight is 0. In stream
        layouts, each row of a batch continues the row with the same index in the previous batch. Batches have no
        `digest`.

        Args:
          rows: function from the batch size to the row indices that this host reads; all rows by default.
          name: source to read; None: all sources that have the split, one after another.
          length: number of tokens in a row; by default, the row length of the last phase.
          max_batches: maximum number of batches; None: no limit.
        """
        length = self._phases[-1].length if length is None else length
        counts, number = self.num_rows(split, name, length), self.num_batches(split, batch_size, name, length)
        batch_step, row_step = (1, number) if self._data.layout.continues_rows else (batch_size, 1)

        def batch(i: int) -> Example:
            indices = [i * batch_step + row * row_step for row in rows(batch_size)]
            return _stack(self._make_all(lambda index: self._row(split, length, counts, index), indices))

        number = number if max_batches is None else min(number, max_batches)
        return iter(self._read_ahead(grain.MapDataset.range(number), batch))

    def _row(self, split: str, length: int, counts: dict[str, int], index: int) -> Example:
        number = index
        for name, count in counts.items():
            if index < count:
                rng = layouts.generator(self._seed, split, number)
                return self._make(self.objective, name, self.rows(split, name, length), index, rng)
            index -= count
        return {key: np.zeros_like(value) for key, value in self._row(split, length, counts, 0).items()}

    def rates(self, phase: Phase) -> dict[str, float]:
        """Returns the relative rate, in rows, of each source that a phase reads.

        Sources that the reader does not open, because the config no longer has them, are left out.
        """
        segment = next(segment for segment in self._segments if segment.phase == phase)
        return {name: rate for name, rate in segment.rates.items() if rate > 0 and name in self.sources}


def _sample(phase: Phase) -> range:
    """Returns the indices of the first `_SAMPLE` examples of a phase, or of all its examples if it has fewer."""
    return range(phase.first_example, min(phase.end_example, phase.first_example + _SAMPLE))


def _check_vocabulary(settings: ReaderConfig, sources: Mapping[str, cache.CachedSource]) -> dict[str, Any]:
    """Returns the vocabulary of all sources, after checking it against the config and the model."""
    first, *_ = sources
    vocabulary = sources[first].vocabulary
    for name, source in sources.items():
        if source.vocabulary["id"] != vocabulary["id"]:
            raise UserError(f"the caches of '{first}' and '{name}' differ in vocabulary: prepare them again")
    kind, _, paths = settings.vocabulary.spec.partition(":")
    if kind != vocabulary["kind"]:
        raise UserError(f"config.vocabulary.spec is {kind}, but that of the cache is {vocabulary['kind']}: {_AGAIN}")
    absent = {"sentinels": 0, "lowercase": False}
    for name in (*NAMES, *absent):
        configured, cached = getattr(settings.vocabulary, name), vocabulary.get(name, absent.get(name))
        if configured != cached:
            raise UserError(f"config.vocabulary.{name} is {configured}, but that of the cache is {cached}: {_AGAIN}")
    for path in filter(storage.exists, paths.split(",")):
        if storage.sha256(path) not in vocabulary["files"].values():
            raise UserError(f"{path} is not the vocabulary that the cache was made with: {_AGAIN}")
    if settings.vocab_size < vocabulary["size"]:
        raise UserError(
            f"config.model.embedding.vocab_size is {settings.vocab_size}: "
            f"set it to at least the vocabulary's size, {vocabulary['size']}"
        )
    return vocabulary


def _constants(data: DataConfig, name: str, length: int) -> Example:
    """Returns the arrays that are the same in all rows of a source. Arrays that the layout makes take precedence."""
    constants = {}
    if data.token_types:
        constants["token_types"] = np.full(length, data.token_types.get(name, 0), np.int32)
    if data.layout.has_positions:
        constants["positions"] = np.arange(length, dtype=np.int32)
    return constants


def _check_segmenters(segmenters: Mapping[str, str], sources: Mapping[str, cache.CachedSource]) -> None:
    """Rejects caches whose segmenter differs from that in the config."""
    for name, source in sources.items():
        segmenter = segmenters.get(name)
        if segmenter != source.segmenter:
            raise UserError(
                f"config.data.segmenters has {segmenter} for '{name}', but the cache was made with "
                f"{source.segmenter}: {_AGAIN}"
            )


def _special_ids(vocabulary: Mapping[str, Any]) -> objectives.Special:
    """Returns the special ids of a manifest's vocabulary."""
    ids = SpecialIds(**{name: vocabulary.get(name) for name in NAMES})
    return objectives.Special.of(ids, vocabulary["size"], vocabulary.get("sentinels", 0))


def _follow_parent(index: int, count: int) -> None:
    """Ends a reader process when its parent ends, for whatever reason, and leaves Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_too() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=end_too, daemon=True).start()


def _stack(examples: list[Example]) -> Example:
    return {key: np.array([example[key] for example in examples]) for key in examples[0]}


def _batch(examples: list[Example]) -> Example:
    batch = _stack(examples)
    checksums = crcs(batch)
    return batch | {"digest": np.stack([checksums & 0xFFFF, checksums >> 16, count_padding(batch)], axis=1)}


def blank_batch(settings: ReaderConfig, length: int) -> Example:
    """Returns a batch of one row without text. Keys, row shapes and types are as in training. Reads no cache."""
    special = objectives.Special.of(settings.vocabulary, settings.vocab_size, settings.vocabulary.sentinels)
    if (rows := settings.example_rows(special)) is not None:
        return _batch([rows.row([((), ())], length)])
    objective = objectives.BoundObjective(settings.objective, special)
    constants = _constants(settings.data, "", length)
    return _batch([noising.blank(settings.data.layout, length, objective, settings.max_characters, constants)])


def crcs(batch: Example) -> np.ndarray:
    """Returns a CRC-32 checksum per row, uint32 [rows].

    The checksum is computed over the keys in sorted order: the name of each key, and the shape, as int64, and the bytes
    of the row's value. All numbers are little-endian.
    """
    pieces = []
    for key, values in sorted(batch.items()):
        values = np.asarray(values, values.dtype.newbyteorder("<"), order="C")
        header = np.frombuffer(key.encode("utf-8") + np.array(values.shape[1:], "<i8").tobytes(), np.uint8)
        pieces.append(np.broadcast_to(header, (len(values), len(header))))
        pieces.append(values.reshape(len(values), -1).view(np.uint8))
    return np.array([zlib.crc32(row) for row in np.concatenate(pieces, axis=1)], np.uint32)


def digest_hex(total: Sequence[int]) -> str:
    """Returns the metric `train/batch_digest` in hex: the sum of the rows' checksums modulo 2^64.

    Args:
      total: [3], the sum of the array `digest` (`Reader.batch`) over the rows of the global batch.
    """
    low, high = (int(half) for half in total[:2])
    return f"{(low + (high << 16)) % 2**64:016x}"
