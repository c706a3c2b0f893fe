"""Schema of a run: frozen dataclasses, which config files and run directories represent as trees.

A config file builds a `Run` and returns `to_config_dict(run)`. The command line overrides fields of this tree
(`common/overrides.py`), and `resolve` converts it back to a checked `Run` with absolute paths.
"""

from plm_jax.common.overrides import overridden
from plm_jax.common.phases import Phase
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.common.trees import brief, differences, to_config_dict, to_dict
from plm_jax.config.expansion import expand_mixtures
from plm_jax.config.phases import (
    in_phase,
    in_validation,
    mesh_of,
    read_sources,
    reader_config,
    resolve_phases,
    target_length,
)
from plm_jax.config.reading import choose, from_dict, from_saved, model_from_saved, modules, resolve
from plm_jax.config.run import Run
from plm_jax.config.training import (
    AuditsConfig,
    CheckpointConfig,
    EvaluationConfig,
    IncidentsConfig,
    PhaseConfig,
    ReferenceConfig,
    TrainConfig,
    UpdateConfig,
)
from plm_jax.data.config import DataConfig, InputsTargetsConfig, ReaderConfig
from plm_jax.data.layouts import (
    Blocks,
    Documents,
    FullSentences,
    LabeledLayout,
    Layout,
    Packed,
    PairStreams,
    Records,
    Segments,
    SentencePairs,
    Streams,
    Translations,
)
from plm_jax.data.sources.files import FileSource, TableInputsTargets, TableSource, TextFiles, TextTable
from plm_jax.data.sources.labeled import (
    AnswerForm,
    ChoiceForm,
    ClassForm,
    Form,
    LabeledSource,
    LabeledTable,
    LabelsForm,
    ScoreForm,
    TagForm,
)
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.records import RecordTable
from plm_jax.data.sources.source import InputsTargetsSource, RegisteredSource, Source, TaskSource
from plm_jax.data.sources.tensorflow_sources import LabeledTfds, SeqioInputsTargets, SeqioTask, Tfds
from plm_jax.data.sources.token_files import TokenFiles
from plm_jax.data.vocabulary_config import VocabularyConfig
from plm_jax.generation.decoding_config import PUBLISHED as PUBLISHED_DECODINGS
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.training.adam_variants import LambConfig, LionConfig, StableAdamWConfig
from plm_jax.training.mesh import MeshConfig
from plm_jax.training.muon import MuonConfig
from plm_jax.training.optimizers import (
    HIDDEN_MATRICES,
    AdafactorConfig,
    AdagradConfig,
    AdamWConfig,
    OptimizerConfig,
    SgdConfig,
)
from plm_jax.training.program import PrecisionConfig
from plm_jax.training.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    RsqrtSchedule,
    RsqrtWarmupSchedule,
    Schedule,
    WsdSchedule,
)
from plm_jax.training.state import AverageConfig

__all__ = [
    "HIDDEN_MATRICES",
    "PUBLISHED_DECODINGS",
    "SPECIALS",
    "AdafactorConfig",
    "AdagradConfig",
    "AdamWConfig",
    "AnswerForm",
    "AuditsConfig",
    "AverageConfig",
    "Blocks",
    "CheckpointConfig",
    "ChoiceForm",
    "ClassForm",
    "ConstantSchedule",
    "CosineSchedule",
    "DataConfig",
    "DecodingConfig",
    "Documents",
    "EvaluationConfig",
    "FileSource",
    "Form",
    "FullSentences",
    "IncidentsConfig",
    "InputsTargetsConfig",
    "InputsTargetsSource",
    "LabeledLayout",
    "LabeledSource",
    "LabeledTable",
    "LabeledTfds",
    "LabelsForm",
    "LambConfig",
    "Layout",
    "LinearSchedule",
    "LionConfig",
    "MeshConfig",
    "MuonConfig",
    "OptimizerConfig",
    "Packed",
    "PairStreams",
    "Phase",
    "PhaseConfig",
    "PrecisionConfig",
    "PromptConfig",
    "ReaderConfig",
    "RecordTable",
    "Records",
    "ReferenceConfig",
    "RegisteredSource",
    "RsqrtSchedule",
    "RsqrtWarmupSchedule",
    "Run",
    "Schedule",
    "ScoreForm",
    "Segments",
    "SentencePairs",
    "SeqioInputsTargets",
    "SeqioTask",
    "SgdConfig",
    "Source",
    "StableAdamWConfig",
    "Streams",
    "TableInputsTargets",
    "TableSource",
    "TagForm",
    "TaskSource",
    "TextFiles",
    "TextTable",
    "Tfds",
    "TokenFiles",
    "TrainConfig",
    "Translations",
    "UpdateConfig",
    "VocabularyConfig",
    "WsdSchedule",
    "brief",
    "choose",
    "differences",
    "expand_mixtures",
    "from_dict",
    "from_saved",
    "in_phase",
    "in_validation",
    "mesh_of",
    "model_from_saved",
    "modules",
    "overridden",
    "read_sources",
    "reader_config",
    "resolve",
    "resolve_phases",
    "target_length",
    "to_config_dict",
    "to_dict",
]
