"""Checks of a run that involve several sections of its config."""

import itertools
import math
from collections.abc import Sequence

from plm_jax import losses, objectives
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.phases import Phase
from plm_jax.config.phases import in_phase, in_validation, resolve_phases, target_length
from plm_jax.config.run import Run
from plm_jax.config.training import TrainConfig
from plm_jax.data.config import InputsTargetsConfig
from plm_jax.data.layouts import Packed, PairStreams, noising
from plm_jax.data.sources.labeled import LabeledSource
from plm_jax.data.sources.source import InputsTargetsSource, Source

# Largest number of tokens in a batch: sixteen times the largest of LLaMA 3.1 405B.
_MOST_TOKENS = 2**28


def check(run: Run) -> None:
    """Checks that the sections of a run fit each other.

    A run whose model is a placeholder for the model of a checkpoint is not checked.

    Raises:
      UserError: the sections do not fit each other, or `vocabulary.spec` is empty.
    """
    if run.model.is_placeholder:
        return
    if not run.vocabulary.spec:
        raise UserError("config.vocabulary.spec is missing: set it")
    _architecture(run)
    phases = resolve_phases(run)
    for phase in phases:
        _mixture(run, phase)
        if phase.batch_size % phase.microbatches:
            raise UserError(
                f"a batch of {phase.batch_size} rows cannot be divided into {phase.microbatches} equal microbatches: "
                "change config.train.batch_size or config.train.microbatches"
            )
        _tokens(phase, "train.batch_size", phase.batch_size)
        _tokens(phase, "evaluation.batch_size", run.evaluation.batch_size)
        for variant in (in_phase(run, phase), in_validation(run)):
            run.data.layout.check(variant.objective, run.vocabulary, phase.length, _read(run, phase))
            _positions(variant, phase.length)
            _same_arrays(run, variant, phase.length)
        _carry(run, phase)
        _token_types(run, phase)
    if _replaces_words(run, phases) and not run.data.similar_words:
        raise UserError(
            "config.objective.similar_share needs a file of similar words: set config.data.similar_words to its path"
        )
    _pairs(run)
    _packed(run)
    _labeled(run)
    _words(run)
    _examples(run, phases)
    _references(run)


def refuse_stand_in(run: Run) -> None:
    """Rejects a run whose model is only a placeholder for the model of a checkpoint.

    Raises:
      UserError: the model is a placeholder.
    """
    if run.model.is_placeholder:
        raise UserError(
            f"config.model.kind is '{run.model.kind}', a placeholder for the model of a checkpoint: pass a checkpoint "
            "with `plm_jax finetune --checkpoint=SRC`, or `--from=SRC` of prepare and pretrain"
        )


def refuse_unused(run: Run) -> None:
    """Rejects settings that training would ignore, such as `data.similar_words` if no objective replaces words.

    Raises:
      UserError: a setting would be ignored, or the model has a head for sentence pairs and the layout has no pairs.
    """
    if "sentence_pair" in run.model.named_heads and not run.data.layout.labels_pairs:
        raise UserError(
            f"config.data.layout '{run.data.layout.kind}' has no sentence pairs to train config.model.pooler "
            "on: set config.model.pooler.classes to 0 or config.model.pooler.kind to none, or choose "
            "sentence_pairs"
        )
    if run.data.similar_words and not _replaces_words(run, resolve_phases(run)):
        raise UserError(
            "config.data.similar_words has no effect without config.objective.similar_share: set it, or leave out "
            "similar_words"
        )
    if run.data.inputs_targets != InputsTargetsConfig() and not run.data.has_inputs_targets:
        raise UserError("no source has inputs and targets: leave out config.data.inputs_targets")
    for name in ("init_names", "init_layers"):
        if getattr(run.train, name) != getattr(TrainConfig, name) and not run.train.init_from:
            raise UserError(
                f"config.train.{name} has no effect without config.train.init_from: set it, or leave out {name}"
            )


def _replaces_words(run: Run, phases: Sequence[Phase]) -> bool:
    """Whether the objective of a phase or of validation replaces words by similar words."""
    variants = [*(in_phase(run, phase) for phase in phases), in_validation(run)]
    return any(variant.objective.similar_share for variant in variants)


def _same_arrays(run: Run, variant: Run, length: int) -> None:
    """Rejects `variant` if the rows of its objective have arrays that differ from those of `run.objective`.

    If a source has inputs and targets, every other objective is rejected.
    """
    if variant.objective == run.objective:
        return
    if run.data.has_inputs_targets:
        raise UserError(
            "config.train.phases or config.evaluation changes fields of the objective, which sources with inputs and "
            "targets do not support: leave out their objective"
        )
    special = objectives.Special.of(run.vocabulary, run.model.vocab_size, run.vocabulary.sentinels)
    names = []
    for objective in (run.objective, variant.objective):
        bound = objectives.BoundObjective(objective, special)
        row = noising.blank(run.data.layout, length, bound, run.model.max_characters)
        names.append({name: (array.dtype, array.ndim) for name, array in row.items()})
    if names[0] != names[1]:
        raise UserError(
            f"rows of config.objective have the arrays {', '.join(names[0])}, but rows of a phase or of validation "
            f"have {', '.join(names[1])}: leave out the changed fields of the objective that cause this"
        )


def _references(run: Run) -> None:
    """Rejects references that are missing, and references that the loss does not read."""
    of_objective = getattr(losses.Loss.choices.get(run.objective.loss), "references", ())
    of_updates = [update.loss.references for update in run.updates if update.loss]
    needed = dict.fromkeys((*of_objective, *itertools.chain.from_iterable(of_updates)))
    for name in needed.keys() - run.train.references.keys():
        raise UserError(
            f"the loss needs a reference '{name}': set config.train.references.{name}.source to a trained model"
        )
    for name in run.train.references:
        if name not in needed:
            raise UserError(
                f"config.train.references has '{name}', which the loss does not read: "
                + (nearest(name, needed) if needed else "leave it out, or set config.train.loss.kind to distillation")
            )


def _architecture(run: Run) -> None:
    """Rejects an objective that does not train the architecture of the model, or not its span boundary head."""
    if run.model.architecture not in run.objective.architectures:
        kinds, kind = "' or '".join(run.objective.architectures), run.model.kind
        variant = "" if kind == run.model.architecture else f", a variant of '{run.model.architecture}'"
        raise UserError(
            f"objective '{run.objective.kind}' trains models of kind '{kinds}', but config.model.kind is "
            f"'{kind}'{variant}: change config.objective.kind or config.model.kind"
        )
    if "span_boundary" in run.model.named_heads and not run.objective.marks_spans:
        raise UserError(
            f"objective '{run.objective.kind}' does not train config.model.span_boundary: leave it out, or choose "
            "span_masked_lm"
        )


def _mixture(run: Run, phase: Phase) -> None:
    """Checks the sources and rates of a phase's mixture."""
    for name, rate in phase.mixture.items():
        if name not in run.data.sources:
            raise UserError(f"config.data.mixture names '{name}': {nearest(name, run.data.sources)}")
        if not (rate >= 0 and math.isfinite(rate)):
            raise UserError(f"config.data.mixture.{name} is {rate}: must be at least 0")
    if phase.mixture and not sum(phase.mixture.values()) > 0:
        raise UserError("config.data.mixture has no rate above 0: set at least one")
    sources = run.data.sources
    records = [name for name, source in sources.items() if source.texts]
    if not phase.mixture and not run.data.has_inputs_targets and 0 < len(records) < len(sources):
        raise UserError(
            f"source '{records[0]}' has records and other sources have text, so there are no default rates: "
            "set config.data.mixture"
        )


def _read(run: Run, phase: Phase) -> dict[str, Source]:
    """Returns the sources that a phase reads, by name."""
    rates = phase.mixture or dict.fromkeys(run.data.sources, 1.0)
    return {name: source for name, source in run.data.sources.items() if rates.get(name, 0.0) > 0}


def _pairs(run: Run) -> None:
    """Rejects a layout whose token types or positions the model does not read, or whose labels no head predicts."""
    layout = run.data.layout
    if layout.labels_pairs and getattr(run.model.named_heads.get("sentence_pair"), "classes", 0) < 2:
        raise UserError(
            "sentence pairs need a model with a pooler of two classes: set config.model.pooler.kind to pooler "
            "(classes=2), or config.data.layout.kind to a layout without pairs, such as blocks"
        )
    if layout.num_texts > 1 and not layout.labels_pairs and run.model.token_types < layout.num_token_types:
        raise UserError(
            f"{layout.plural} need a model that distinguishes their texts: set config.model.embedding.token_types to "
            f"{layout.num_token_types}"
        )
    if layout.has_positions and "positions" not in run.model.inputs:
        raise UserError(
            f"{layout.plural} have positions, which a model of kind '{run.model.kind}' does not read: change "
            "config.data.layout or config.model.kind"
        )


def _token_types(run: Run, phase: Phase) -> None:
    """Rejects `data.token_types` that the layout or the model does not support, or that omit a source of the phase."""
    types, layout = run.data.token_types, run.data.layout
    if not types:
        return
    if layout.num_texts > 1 or layout.form(run.objective) not in ("text", "row"):
        raise UserError(
            f"rows of config.data.layout '{layout.kind}' have no token type of their source: leave out "
            "config.data.token_types"
        )
    if "token_types" not in run.model.inputs:
        raise UserError(f"a model of kind '{run.model.kind}' reads no token types: leave out config.data.token_types")
    for name, token_type in types.items():
        if token_type >= run.model.token_types:
            raise UserError(
                f"config.data.token_types.{name} is {token_type}, but the model has {run.model.token_types} token "
                "types: raise config.model.embedding.token_types"
            )
    named = {text for name, source in _read(run, phase).items() for text in source.texts or (name,)}
    for name in sorted(named - types.keys()):
        raise UserError(f"config.data.token_types does not name '{name}', which a phase reads: add it")


def _packed(run: Run) -> None:
    """Rejects rows of several separate texts if the model cannot keep the texts apart."""
    discriminator, layout = getattr(run.model, "discriminator", None), run.data.layout
    is_apart = isinstance(layout, Packed) or not layout.attend_across_documents
    if is_apart and getattr(discriminator, "adds_first", False):
        raise UserError(
            "config.model.discriminator.adds_first reads the first token of a row, which may be of another document: "
            "use a layout with one text per row, such as config.data.layout.kind=blocks with frames=True"
        )
    if not isinstance(run.data.layout, Packed):
        return
    if missing := [name for name in ("segment_ids", "positions") if name not in run.model.inputs]:
        raise UserError(
            f"packed rows need a model that reads `{missing[0]}`, but model '{run.model.kind}' does not: use "
            f"'{run.data.layout.inner.kind}' as config.data.layout"
        )


def _labeled(run: Run) -> None:
    """Rejects a model if its architecture, head or labels do not fit the objective of a task or the sources."""
    objective = run.objective
    if objective.task_head is None:
        return
    if isinstance(objective, objectives.LabeledObjective) and objective.rows != run.model.architecture:
        raise UserError(
            f"config.objective.rows is {objective.rows}, but config.model.kind is '{run.model.kind}': set rows to "
            f"{run.model.architecture}"
        )
    head = run.model.named_heads.get("task")
    if head is None:
        return
    if head.kind != objective.task_head:
        raise UserError(
            f"config.model.heads.task.kind is {head.kind}, but objective '{objective.kind}' trains a head of kind "
            f"{objective.task_head}: change it, or leave out the head"
        )
    for name, source in run.data.sources.items():
        if isinstance(source, LabeledSource):
            _labels(getattr(head, "labels", ()), name, source.form.labels)


def _labels(head_labels: Sequence[str], name: str, source_labels: Sequence[str]) -> None:
    """Rejects a head whose labels differ from those of a source, if both have labels."""
    if not head_labels or not source_labels:
        return
    if len(head_labels) != len(source_labels):
        raise UserError(
            f"config.model.heads.task has {len(head_labels)} labels ({', '.join(head_labels)}), but source '{name}' "
            f"has {len(source_labels)} ({', '.join(source_labels)}): set config.model.heads.task.labels to those of "
            "the source"
        )
    for ours, theirs in zip(head_labels, source_labels, strict=True):
        if ours != theirs:
            raise UserError(
                f"config.model.heads.task.labels has '{ours}' where form.labels of source '{name}' has '{theirs}': "
                f"use the same labels in the same order ({nearest(ours, source_labels)})"
            )


def _carry(run: Run, phase: Phase) -> None:
    """Rejects a model that carries state from row to row if successive rows are not consecutive text.

    Also rejects a wrong `model.reuse_length` for rows of pair streams.
    """
    layout, sources = run.data.layout, _read(run, phase)
    if isinstance(layout, PairStreams) and getattr(run.model, "memory_length", 0):
        reused, remembered = phase.length // 2, getattr(run.model, "reuse_length", 0)
        if remembered != reused:
            raise UserError(
                f"config.model.reuse_length is {remembered}, but rows of {phase.length} tokens reuse {reused}: set it "
                f"to {reused}, and use the same row length in all phases"
            )
    if not layout.continues_rows:
        reason = f"the rows of config.data.layout '{layout.kind}' are shuffled"
    elif shuffled := [name for name, source in sources.items() if isinstance(source, InputsTargetsSource)]:
        reason = f"the rows of source '{shuffled[0]}' are shuffled"
    elif len(sources) > 1:
        reason = f"rows alternate between the sources {', '.join(sources)}"
    else:
        return
    if run.objective.carries_state and run.model.has_carry:
        can_forget = hasattr(run.model, "memory_length")
        remedy = "set config.model.memory_length to 0" if can_forget else "choose a model without recurrent state"
        raise UserError(
            f"model '{run.model.kind}' keeps recurrent state from batch to batch, but {reason}: set config.data.layout "
            f"to one with consecutive rows, such as streams, and read a single source of text, or {remedy}"
        )


def _tokens(phase: Phase, field: str, rows: int) -> None:
    """Rejects batches of more than `_MOST_TOKENS` tokens."""
    if rows * phase.length > _MOST_TOKENS:
        raise UserError(
            f"config.{field} is {rows:,} with rows of {phase.length:,} tokens: a batch may have at most "
            f"{_MOST_TOKENS:,} tokens"
        )


def longest_text(run: Run, length: int) -> int:
    """Returns the number of positions that a model needs for rows of `length`.

    If the model has an encoder and a decoder, this is the larger of their numbers.
    """
    longest = run.objective.num_positions(length)
    return max(longest, target_length(run, length)) if run.model.has_decoder else longest


def _positions(run: Run, length: int) -> None:
    """Rejects rows that need more positions than the model has; some models have no limit."""
    longest, most = longest_text(run, length), run.model.num_positions
    if most is not None and longest > most:
        text = "" if longest == length else f" with texts of {longest}"
        raise UserError(
            f"config.data.length is {length}{text}, but the model has {most} positions: decrease config.data.length, "
            "or increase config.model.attention.position.length (for a mask decoder: config.model.head.positions)"
        )


def _words(run: Run) -> None:
    """Checks the softmax of a model that predicts words in both directions."""
    objective, train = run.objective, run.train
    if "stream" not in objective.inputs:
        return
    if objective.negative_samples >= run.model.vocab_size:
        raise UserError(
            f"config.objective.negative_samples is {objective.negative_samples}: must be less than the "
            f"{run.model.vocab_size} words of the model, or 0 for the full softmax"
        )
    if objective.negative_samples and (train.z_loss or train.label_smoothing):
        raise UserError(
            "a sampled softmax supports neither z_loss nor label_smoothing: set them or negative_samples to 0"
        )
    if "vocabulary" not in run.model.named_heads:
        raise UserError("bidirectional_lm trains a model with a head: set config.model.head.kind to softmax")


def _examples(run: Run, phases: Sequence[Phase]) -> None:
    """Checks the settings that sources with inputs and targets need; does nothing if there is no such source."""
    objective, settings = run.objective, run.data.inputs_targets
    names = [name for name, source in run.data.sources.items() if isinstance(source, InputsTargetsSource)]
    if not names:
        return
    if objective.example_rows is None:
        raise UserError(
            f"source '{names[0]}' has inputs and targets, which objective '{objective.kind}' does not train on: "
            "set config.objective.kind to causal, decoder_prefix_lm, decoder_text_to_text or an objective of an "
            "encoder-decoder"
        )
    shares_row, target_length = not run.model.has_decoder, settings.target_length
    if shares_row and target_length is None:
        raise UserError(
            "a decoder reads inputs and targets in one row: set config.data.inputs_targets.target_length to the "
            "maximum number of target tokens"
        )
    for phase in phases:
        if target_length is None:
            break
        begin = len(run.data.layout.begin)
        least, most = 2, phase.length - max(0, begin - 1) if shares_row else target_length
        if not shares_row and len(names) < len(run.data.sources):
            least = objective.target_length(phase.length)
        if not least <= target_length <= most:
            limit = f"between {least} and {most}" if shares_row else f"at least {least}"
            raise UserError(
                f"config.data.inputs_targets.target_length is {target_length}, with rows of {phase.length}: "
                f"must be {limit}"
            )
    if not settings.packed:
        return
    if objective.has_prefix:
        raise UserError(
            f"objective '{objective.kind}' allows one example per row, whose inputs are the prefix: set "
            "config.data.inputs_targets.packed to False"
        )
    if not shares_row and run.model.uses_absolute_positions:
        raise UserError(
            "packed examples share a row, but the model uses absolute positions: set "
            "config.data.inputs_targets.packed to False, or config.model.attention.position.kind to relative_bias or "
            "rotary"
        )
