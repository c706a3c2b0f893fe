"""Table of T5's supervised tasks, and their registration with seqio, on TFDS data or on your own files.

Importing this module imports seqio and TensorFlow; `TASKS[name].examples(row)` itself is plain Python.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common.errors import UserError, nearest, one_line
from plm_jax.data.sources import files, tables
from plm_jax.data.tensorflow_side import seqio, tf
from plm_jax.data.text_to_text import formats, metrics, postprocessors, wnli

# Number of rows that move between TensorFlow and Python at a time; single rows would take ten times as long.
_BATCH = 256
# Types of the fields of a batch besides `inputs` and `targets`, for postprocessors.
_INTEGERS, _STRINGS = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string)
_ANSWERS = {"answers": tf.RaggedTensorSpec([None, None], tf.string, 1)}
_REFERENT = {"referent": _STRINGS, "label": _INTEGERS}
# Code that makes examples of rows; its hash enters the fingerprint of a cache.
_CODE = (__file__, formats.__file__, wnli.__file__)


@dataclass(frozen=True)
class SuiteTask:
    """A task of the suite.

    Attributes:
      tfds: name of the data set in TFDS, with its configuration and version.
      examples: format of rows, which converts a row of plain Python values to a list of examples. Each example has
        `inputs`, `targets` and the keys of `fields`.
      lengths: T5's maximum numbers of tokens of inputs and of targets, including eos
        (`t5/models/gin/sequence_lengths`).
      metric_fns: metrics; empty if there are no labels to evaluate with.
      postprocess: function of `postprocessors` that makes the values to compare; None if the metrics compare texts.
      fields: types of the fields of a batch of examples besides `inputs` and `targets`.
      splits: splits of the task, a subset of the data set's splits; if empty, all splits of the data set.
      trained: format of the rows of the split `train`, if it differs from `examples`.
    """

    tfds: str
    examples: formats.Format
    lengths: tuple[int, int]
    metric_fns: tuple[metrics.Metric, ...]
    postprocess: Callable[..., Any] | None = None
    fields: Mapping[str, tf.TypeSpec] = field(default_factory=dict)
    splits: tuple[str, ...] = ()
    trained: formats.Format | None = None

    def format_of(self, split: str) -> formats.Format:
        """Returns the format of the rows of a split."""
        return self.trained if split == "train" and self.trained else self.examples


@dataclass(frozen=True)
class FromTfds:
    """Rows of TensorFlow Datasets, downloaded when they are first read.

    Attributes:
      data_dir: folder of the prepared data; if empty, the default of TensorFlow Datasets.
    """

    kind: ClassVar[str] = "tfds"
    data_dir: str = ""


@dataclass(frozen=True)
class FromJsonLines:
    """Rows of JSONL files. Each line is a row with the fields of the TFDS data set; classes are integers.

    Attributes:
      paths: path or glob of each split; files may be `.gz`.
    """

    kind: ClassVar[str] = "jsonl"
    paths: Mapping[str, str]


_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_SENTENCES = ("sentence1", "sentence2")
_HYPOTHESIS = ("hypothesis", "premise")
_GLUE_LENGTHS, _SUPER_GLUE_LENGTHS, _SQUAD_LENGTHS, _LONG = (512, 84), (512, 62), (512, 97), (512, 512)


def _glue(name: str, *rest: Any, **options: Any) -> SuiteTask:
    return _labeled("glue", "2.0.0", _GLUE_LENGTHS, name, *rest, **options)


def _super_glue(name: str, *rest: Any, **options: Any) -> SuiteTask:
    return _labeled("super_glue", "1.0.2", _SUPER_GLUE_LENGTHS, name, *rest, **options)


def _labeled(
    suite: str,
    version: str,
    lengths: tuple[int, int],
    name: str,
    fields: Sequence[str],
    labels: Sequence[str],
    *metric_fns: metrics.Metric,
    prefix: str = "",
    columns: Sequence[str] = (),
    splits: tuple[str, ...] = (),
) -> SuiteTask:
    """Returns a task whose target is a label.

    Args:
      fields: names of the fields in the inputs.
      prefix: name of the task in the inputs; if empty, `name`.
      columns: names of the fields in TFDS; if empty, `fields`.
    """
    examples = formats.labeled(prefix or name, fields, labels, columns)
    postprocess = functools.partial(postprocessors.label_index, labels=labels)
    return SuiteTask(f"{suite}/{name}:{version}", examples, lengths, metric_fns, postprocess, splits=splits)


def _wmt(data: str, target: str) -> SuiteTask:
    return SuiteTask(f"{data}/{target}-en:1.0.0", formats.translation("en", target), _LONG, (metrics.bleu,))


_accuracy, _boolean = metrics.accuracy, formats.BOOLEAN

TASKS: dict[str, SuiteTask] = {
    # GLUE.
    "glue_cola": _glue("cola", ("sentence",), ("unacceptable", "acceptable"), metrics.matthews_corrcoef),
    "glue_sst2": _glue("sst2", ("sentence",), ("negative", "positive"), _accuracy),
    "glue_mrpc": _glue("mrpc", _SENTENCES, ("not_equivalent", "equivalent"), metrics.binary_f1, _accuracy),
    "glue_qqp": _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), metrics.binary_f1, _accuracy),
    "glue_stsb": SuiteTask(
        "glue/stsb:2.0.0",
        formats.stsb,
        _GLUE_LENGTHS,
        (metrics.pearson_corrcoef, metrics.spearman_corrcoef),
        postprocessors.number,
    ),
    "glue_mnli": _glue("mnli", _HYPOTHESIS, _NLI, _accuracy),
    "glue_mnli_matched": _glue("mnli_matched", _HYPOTHESIS, _NLI, _accuracy, prefix="mnli"),
    "glue_mnli_mismatched": _glue("mnli_mismatched", _HYPOTHESIS, _NLI, _accuracy, prefix="mnli"),
    "glue_ax": _glue("ax", _HYPOTHESIS, _NLI, prefix="mnli", splits=("test",)),
    "glue_qnli": _glue("qnli", ("question", "sentence"), _ENTAILMENT, _accuracy),
    "glue_rte": _glue("rte", _SENTENCES, _ENTAILMENT, _accuracy),
    "glue_wnli": _glue("wnli", _SENTENCES, _ENTAILMENT[::-1], _accuracy),
    "glue_wnli_eval": SuiteTask(
        "glue/wnli:2.0.0",
        formats.wnli_as_wsc,
        _GLUE_LENGTHS,
        (_accuracy,),
        postprocessors.referent,
        _REFERENT,
        ("validation", "test"),
    ),
    # SuperGLUE, with definite pronoun resolution, which WSC is trained with.
    "super_glue_boolq": _super_glue("boolq", ("passage", "question"), _boolean, _accuracy),
    "super_glue_cb": _super_glue(
        "cb", _HYPOTHESIS, ("entailment", "contradiction", "neutral"), metrics.mean_3class_f1, _accuracy
    ),
    "super_glue_copa": _super_glue(
        "copa", ("choice1", "choice2", "premise", "question"), ("choice1", "choice2"), _accuracy
    ),
    "super_glue_multirc": SuiteTask(
        "super_glue/multirc:1.0.2",
        formats.multirc,
        _SUPER_GLUE_LENGTHS,
        (metrics.on_values(metrics.binary_f1), metrics.mean_over_groups(metrics.all_match)),
        postprocessors.multirc,
        {f"idx/{part}": _INTEGERS for part in ("paragraph", "question", "answer")},
    ),
    "super_glue_record": SuiteTask(
        "super_glue/record:1.0.2",
        formats.record,
        _SUPER_GLUE_LENGTHS,
        (metrics.on_first_of_groups(metrics.squad),),
        postprocessors.record,
        {**_ANSWERS, **{f"idx/{part}": _INTEGERS for part in ("passage", "query")}},
    ),
    "super_glue_rte": _super_glue("rte", _HYPOTHESIS, _ENTAILMENT, _accuracy),
    "super_glue_wic": _super_glue("wic", (*_SENTENCES, "word"), _boolean, _accuracy),
    "super_glue_axb": _super_glue(
        "axb", _HYPOTHESIS, _ENTAILMENT, columns=_SENTENCES[::-1], prefix="rte", splits=("test",)
    ),
    "super_glue_axg": _super_glue("axg", _HYPOTHESIS, _ENTAILMENT, prefix="rte", splits=("test",)),
    # T5 has two tasks for WSC: one trains on the rows with the correct noun, the other evaluates all rows.
    "super_glue_wsc": SuiteTask(
        "super_glue/wsc.fixed:1.0.2",
        formats.wsc,
        _SUPER_GLUE_LENGTHS,
        (_accuracy,),
        postprocessors.referent,
        _REFERENT,
        trained=formats.true_wsc,
    ),
    "dpr": SuiteTask("definite_pronoun_resolution:1.1.0", formats.definite_pronoun, _SUPER_GLUE_LENGTHS, (_accuracy,)),
    # Questions, with and without the context.
    "squad": SuiteTask(
        "squad/v1.1:3.0.0", formats.squad, _SQUAD_LENGTHS, (metrics.squad,), postprocessors.answers, _ANSWERS
    ),
    "squad_closed_book": SuiteTask(
        "squad/v1.1:3.0.0",
        formats.closed_book_squad,
        _SQUAD_LENGTHS,
        (metrics.squad,),
        postprocessors.answers,
        _ANSWERS,
    ),
    # Summaries and translations.
    "cnn_dailymail": SuiteTask("cnn_dailymail:3.4.0", formats.summary, _LONG, (metrics.rouge,)),
    "wmt_t2t_ende": _wmt("wmt_t2t_translate", "de"),
    "wmt14_ende": _wmt("wmt14_translate", "de"),
    "wmt14_enfr": _wmt("wmt14_translate", "fr"),
    "wmt15_enfr": _wmt("wmt15_translate", "fr"),
    "wmt16_enro": _wmt("wmt16_translate", "ro"),
}


def register(
    task: str,
    source: FromTfds | FromJsonLines = FromTfds(),
    vocabulary: seqio.Vocabulary | None = None,
    name: str = "",
) -> seqio.Task:
    """Registers a task of the suite with seqio, without reading its data, and returns it.

    Rows that do not fit the task raise `UserError` when they are read. TensorFlow hides this error; the attribute
    `source.error` of the task has it.

    Args:
      source: where the rows come from.
      vocabulary: vocabulary that tokenizes `inputs` and `targets`, each truncated to its `sequence_length` and ended by
        eos; the texts are the features `inputs_pretokenized` and `targets_pretokenized`. If None, the features `inputs`
        and `targets` are texts.
      name: name of the task in seqio; by default `plm_jax:TASK`.

    Raises:
      UserError: there is no such task, seqio already has a task of this name, or the vocabulary has no eos.
    """
    if task not in TASKS:
        raise UserError(f"the text-to-text suite has no task '{task}': {nearest(task, TASKS)}")
    name = name or f"plm_jax:{task}"
    if name in seqio.TaskRegistry.names():
        raise UserError(f"seqio already has a task '{name}': use another name")
    entry = TASKS[task]
    data: Any = _Tfds(entry, source.data_dir) if isinstance(source, FromTfds) else _TextTable(entry, source.paths)
    data.code = _CODE
    return seqio.TaskRegistry.add(
        name,
        source=data,
        preprocessors=_TOKENIZE if vocabulary else [],
        output_features={part: _feature(vocabulary) for part in ("inputs", "targets")},
        postprocess_fn=entry.postprocess,
        metric_fns=list(entry.metric_fns),
    )


_TOKENIZE = [seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(), seqio.preprocessors.append_eos_after_trim]


def _feature(vocabulary: Any) -> Any:
    if vocabulary is None:
        return seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)
    if vocabulary.eos_id is None:
        raise UserError("the vocabulary has no eos, which ends inputs and targets: set vocabulary.eos")
    return seqio.Feature(vocabulary)


class _TextTable(seqio.DataSource):
    """Examples of a task from the rows of JSONL files."""

    def __init__(self, task: SuiteTask, paths: Mapping[str, str]):
        self._task, self._paths = task, dict(paths)
        super().__init__(splits=self._paths)

    @property
    @override
    def supports_arbitrary_sharding(self) -> bool:
        return False

    @override
    def list_shards(self, split: str) -> list[str]:
        return files.paths(files.TextTable(self._paths[split]))

    @override
    def get_dataset(self, split: str = "train", shuffle: bool = True, seed=None, shard_info=None, **_: Any):
        # seqio shuffles the rows itself.
        paths = self.list_shards(split)
        if shard_info:
            paths = paths[shard_info.index :: shard_info.num_shards]
        return _examples(self._task, split, self, lambda: itertools.chain.from_iterable(map(tables.read_rows, paths)))


class _Tfds(seqio.TfdsDataSource):
    """Examples of a task from the rows of TensorFlow Datasets."""

    def __init__(self, task: SuiteTask, data_dir: str):
        self._task = task
        super().__init__(task.tfds, tfds_data_dir=data_dir or None, splits=task.splits or None)

    def get_dataset(self, split: str = "train", *arguments: Any, **options: Any) -> tf.data.Dataset:
        dataset = super().get_dataset(split, *arguments, **options)

        def rows() -> Iterator[tuple[str, formats.Row]]:
            numbers = itertools.count(1)
            for batch in dataset.ragged_batch(_BATCH):
                columns = tf.nest.map_structure(lambda part: part.numpy(), batch)
                for i in range(len(next(iter(tf.nest.flatten(columns))))):
                    yield f"row {next(numbers)} of {self._task.tfds}", _row(columns, i)

        return _examples(self._task, split, self, rows)


def _examples(
    task: SuiteTask, split: str, source: Any, rows: Callable[[], Iterable[tuple[str, formats.Row]]]
) -> tf.data.Dataset:
    """Returns a data set of the examples that the rows of a split make.

    Args:
      source: data source of the task; its attribute `error` gets the error of a row.
      rows: function that yields a pair per row: the location of the row for errors, and the row itself.
    """
    make = task.format_of(split)
    signature = {"inputs": _STRINGS, "targets": _STRINGS, **task.fields}

    def examples() -> Iterator[formats.Example]:
        for location, row in rows():
            try:
                yield from make(row)
            except KeyError as error:
                missing = error.args[0]
                raise UserError(f"{location} has no '{missing}': {nearest(missing, row)}") from None
            except UserError as error:
                raise UserError(f"{location}: {error}") from None
            except (TypeError, ValueError, OverflowError, re.error) as error:
                raise UserError(
                    f"{location} is not a row of {task.tfds} ({one_line(error)}): fix or remove this row"
                ) from None

    def batches() -> Iterator[dict[str, Any]]:
        remaining = examples()
        try:
            while batch := list(itertools.islice(remaining, _BATCH)):
                columns = {name: [example[name] for example in batch] for name in signature}
                ragged = {name: tf.ragged.constant(columns[name], tf.string, 1) for name in _ANSWERS if name in columns}
                yield columns | ragged
        except UserError as error:
            source.error = error
            raise

    return tf.data.Dataset.from_generator(batches, output_signature=signature).unbatch()


def _row(columns: Any, i: int) -> Any:
    """Returns row i of a batch of TensorFlow values, with texts instead of bytes and lists instead of arrays."""
    if isinstance(columns, dict):
        return {name: _row(column, i) for name, column in columns.items()}
    return _plain(columns[i])


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(inner) for inner in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value
