"""The schema of a run: frozen dataclasses; files, command lines and run directories hold the same tree as ConfigDicts.

A config page builds a `Run` and returns `to_config_dict(run)`; the command line changes fields of that tree, see
`overrides`; `resolve` turns it back into a checked `Run` with absolute paths. `Run` is what everything else takes.
"""

from plm_jax.common.trees import brief, differences, to_config_dict, to_dict
from plm_jax.config.data import SPECIALS, Data, InputsTargets, Vocabulary
from plm_jax.config.decoding import PUBLISHED as PUBLISHED_DECODINGS
from plm_jax.config.decoding import Decoding
from plm_jax.config.labelled import (
    Answers,
    Choices,
    Classes,
    Form,
    LabelledJsonLines,
    LabelledSource,
    LabelledTfds,
    Score,
    Tags,
)
from plm_jax.config.optimizers import Adafactor, Adagrad, AdamW, Lamb, Optimizer, Sgd
from plm_jax.config.prompts import Prompt
from plm_jax.config.reading import choose, from_dict, from_saved, model_from_saved, modules, resolve
from plm_jax.config.run import Run
from plm_jax.config.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    RsqrtSchedule,
    RsqrtWarmupSchedule,
    Schedule,
)
from plm_jax.config.sources import (
    FileSource,
    InputsTargetsSource,
    JsonLines,
    JsonLinesInputsTargets,
    JsonSource,
    RegisteredSource,
    SeqioInputsTargets,
    SeqioTask,
    Source,
    TaskSource,
    TextFiles,
    Tfds,
)
from plm_jax.config.stages import has_inputs_targets, read_sources, stages, target_length
from plm_jax.config.training import Checkpoint, Evaluation, Incidents, Mesh, Phase, Precision, Stage, Train
from plm_jax.data.layouts import Blocks, Documents, Labelled, Layout, Segments, SentencePairs, Streams, WholeSentences

__all__ = [
    "PUBLISHED_DECODINGS",
    "SPECIALS",
    "Adafactor",
    "Adagrad",
    "AdamW",
    "Answers",
    "Blocks",
    "Checkpoint",
    "Choices",
    "Classes",
    "ConstantSchedule",
    "CosineSchedule",
    "Data",
    "Decoding",
    "Documents",
    "Evaluation",
    "FileSource",
    "Form",
    "Incidents",
    "InputsTargets",
    "InputsTargetsSource",
    "JsonLines",
    "JsonLinesInputsTargets",
    "JsonSource",
    "Labelled",
    "LabelledJsonLines",
    "LabelledSource",
    "LabelledTfds",
    "Lamb",
    "Layout",
    "LinearSchedule",
    "Mesh",
    "Optimizer",
    "Phase",
    "Precision",
    "Prompt",
    "RegisteredSource",
    "RsqrtSchedule",
    "RsqrtWarmupSchedule",
    "Run",
    "Schedule",
    "Score",
    "Segments",
    "SentencePairs",
    "SeqioInputsTargets",
    "SeqioTask",
    "Sgd",
    "Source",
    "Stage",
    "Streams",
    "Tags",
    "TaskSource",
    "TextFiles",
    "Tfds",
    "Train",
    "Vocabulary",
    "WholeSentences",
    "brief",
    "choose",
    "differences",
    "from_dict",
    "from_saved",
    "has_inputs_targets",
    "model_from_saved",
    "modules",
    "read_sources",
    "resolve",
    "stages",
    "target_length",
    "to_config_dict",
    "to_dict",
]
