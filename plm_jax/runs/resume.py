"""Resuming a run: settings that differ from the saved run, whether they may differ, and the examples to read next."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from plm_jax import config
from plm_jax.common import storage, trees, users
from plm_jax.common.errors import UserError
from plm_jax.data.cache import similar_words
from plm_jax.models import registry
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import run_directory
from plm_jax.training import schedules

# Effect of a change of each field on a run that resumes; every change is reported. A name includes the fields below it,
# and the longest matching name counts. If one part of a section is listed, all of its parts are.
#
#   free    numbers change only by rounding
#   recipe  changes what is learned from now on
#   read    length, batch size, mixture and objective of steps: rejected if they change for steps that are finished
#   cache   texts and vocabulary: rejected if the identities of the caches change (`caches`)
#   fixed   changes every example or every draw, or the state cannot be restored: rejected
Meaning = Literal["free", "recipe", "read", "cache", "fixed"]
FIELDS: dict[str, Meaning] = {
    "model": "fixed",  # A model of another kind.
    **{
        f"model.{part}": "fixed"
        for part in (
            *(
                "embedding",
                "attention",
                "feed_forward",
                "norm",
                "stack",
                "decoder_stack",
                "head",
                "heads",
                "pooler",
                "decoder_heads",
                "decoder_feed_forward",
                "decoder_head_dim",
                "source_encoder",
                "tie_encoder_decoder",
            ),
            *("span_boundary", "generator", "discriminator", "lstm", "initializer", "convolution", "sharing"),
            *("memory_length", "reuse_length", "causal", "reverses_half"),
        )
    },
    "model.attention_kernel": "free",
    "model.dropout": "recipe",
    "model.pipeline_microbatches": "free",
    "model.remat": "free",
    "model.scan_layers": "free",
    "objective": "fixed",
    "data.bad_rows": "cache",
    "data.cache_dir": "cache",
    "data.inputs_targets": "fixed",
    "data.layout": "fixed",
    "data.length": "read",
    "data.mixture": "read",
    "data.prefetch": "free",
    "data.processes": "free",
    "data.segmenters": "cache",
    "data.similar_words": "cache",
    "data.sources": "cache",
    "data.threads": "free",
    "data.token_types": "fixed",
    "data.validation_fraction": "cache",
    "data.window_tokens": "fixed",
    "vocabulary": "cache",
    "optimizer": "fixed",  # Except fields that its class declares as `recipe`.
    "schedule": "recipe",
    "train.average": "recipe",
    "train.batch_size": "read",
    "train.epochs": "free",  # The data that is read depends on the resulting steps.
    "train.init_from": "free",  # This field and the next four affect only the initial state.
    "train.init_layers": "free",
    "train.init_names": "free",
    "train.new_tokens": "free",
    "train.reinitialize_top": "free",
    "train.trainable": "fixed",  # The optimizer has moments only for these parameters.
    "train.audits": "free",
    "train.incidents": "recipe",
    "train.label_smoothing": "recipe",
    "train.loss": "recipe",
    "train.references": "recipe",  # Rejected if the hash of a reference's parameters changes.
    "train.log_every": "free",
    "train.log_norms": "free",
    "train.microbatches": "recipe",  # Each microbatch draws its own dropout.
    "train.phases": "read",
    "train.prng": "fixed",
    "train.profile_steps": "free",
    "train.seed": "fixed",
    "train.stall_minutes": "free",
    "train.steps": "read",
    "train.wandb_project": "free",
    "train.updates": "fixed",
    "train.z_loss": "recipe",
    "mesh": "free",
    "precision": "recipe",
    "checkpoint": "free",
    "evaluation": "free",
    "versions": "free",
}
# Maximum number of fields in the message of a rejected resume.
_NAMED = 5


def meaning(field: str, optimizer: config.OptimizerConfig) -> Meaning:
    """Returns the effect that a change of a field has on a run that resumes, as `FIELDS` defines it.

    Args:
      field: dotted path of the field.
      optimizer: optimizer of the run; its `recipe` lists the fields of the optimizer that may change.
    """
    section, _, name = field.partition(".")
    if section == "optimizer" and name in optimizer.recipe:
        return "recipe"
    while field not in FIELDS:
        field = field.rpartition(".")[0]
    return FIELDS[field]


class Change(NamedTuple):
    """A difference between the saved run and the run that resumes.

    Attributes:
      field: dotted path, or a description such as `the vocabulary`.
      was: value in the saved run.
      now: value in the run that resumes.
      refused: whether the change is rejected without `--allow_changes`.
    """

    field: str
    was: Any
    now: Any
    refused: bool


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run resumes from.

    Attributes:
      workdir: run directory of the checkpoint.
      step: step of the checkpoint.
      meta: contents of the checkpoint's `meta`.
      saved_run: config of the run that saved the checkpoint.
      saved_phases: all phases of the saved run: the phases up to `step`, and the phases that were still to be trained.
      damaged: for each newer checkpoint, by step, the reason why it cannot be used.
    """

    workdir: str
    step: int
    meta: Mapping[str, Any]
    saved_run: config.Run
    saved_phases: tuple[config.Phase, ...]
    damaged: Mapping[int, str]

    def plan(self, phases: Sequence[config.Phase]) -> tuple[config.Phase, ...]:
        """Returns the phases that were trained up to the checkpoint, followed by the remaining phases of a config."""
        return plan_phases(self.saved_phases, phases, self.step)

    def changes(
        self,
        run: config.Run,
        caches: Mapping[str, str],
        vocabulary_id: str,
        mesh: Mapping[str, int],
        references: Mapping[str, str] = {},
    ) -> list[Change]:
        """Returns the differences between a run and the run that saved the checkpoint.

        Args:
          caches: identities of the caches, by source.
          vocabulary_id: identity of the vocabulary of the caches.
          mesh: sizes of the mesh axes in the phase that contains the checkpoint's step.
          references: hashes of the parameters of the references, by name.
        """
        was, now = config.to_dict(self.saved_run), config.to_dict(run)
        was["mesh"] |= self.meta["mesh"]
        now["mesh"] |= mesh
        now["versions"] = run_directory.versions()
        was["versions"] = self.meta.get("versions", now["versions"])
        saved_phases, phases = config.resolve_phases(self.saved_run), config.resolve_phases(run)
        reads_other_rows = spans_of_rows(saved_phases, self.step) != spans_of_rows(phases, self.step)
        changes = []
        for field, before, after in config.differences(was, now):
            effect = meaning(field, run.optimizer)
            refused = effect == "fixed" or (effect == "read" and reads_other_rows)
            changes.append(Change(field, before, after, refused))
        if self.meta["vocabulary_id"] != vocabulary_id:
            changes.append(Change("the vocabulary", self.meta["vocabulary_id"][:12], vocabulary_id[:12], True))
        for name, (saved, code) in users.changed(self.meta.get("modules", {}), run).items():
            changes.append(Change(f"the code in {name}", saved, code, True))
        saved_references = self.meta.get("references", {})
        for name in saved_references.keys() & references.keys():  # A reference may be added or removed.
            before, after = saved_references[name], references[name]
            if before != after:
                changes.append(Change(f"the weights of reference '{name}'", before[:12], after[:12], True))
        saved_caches = self.meta.get("caches", caches)  # Old checkpoints do not record them.
        by_size = not all(phase.mixture for phase in self.saved_phases if phase.first_step < self.step)
        for field, before, after in config.differences(saved_caches, caches):
            # Without rates, another source changes what is read of every source. Only the objective reads the table of
            # similar words, so that it may be added or removed with `similar_share`.
            if (by_size and field != similar_words.NAME) or field in saved_caches.keys() & caches.keys():
                changes.append(Change(f"the cache of '{field}'", str(before)[:12], str(after)[:12], True))
        return changes

    def check(self, run: config.Run, changes: Sequence[Change], allow_changes: bool) -> None:
        """Raises a `UserError` if changes must be rejected.

        Changes that are `refused` are rejected unless `allow_changes` is set. A changed model whose parameters have
        other names or shapes is always rejected.
        """
        refused = [change for change in changes if change.refused]
        named = [f"{c.field} was {config.brief(c.was)} and is {config.brief(c.now)}" for c in refused[:_NAMED]]
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        what = ", ".join(named) + more
        of_model = any(change.field.split(".")[0] == "model" for change in refused)
        if of_model and registry.shapes(self.saved_run.model) != registry.shapes(run.model):
            raise UserError(f"{self.workdir} contains a run of another model ({what}): choose another --workdir")
        if refused and not allow_changes:
            raise UserError(
                f"checkpoint {self.step} of {self.workdir} was trained with other settings ({what}): undo the change, "
                "choose another --workdir, or resume from it anyway with --allow_changes"
            )

    def notes(self, run: config.Run, changes: Sequence[Change]) -> list[str]:
        """Returns lines that report damaged checkpoints, changes, and the step from which the learning rate changes."""
        lines = [
            f"checkpoint {step} is damaged ({reason}): it is kept as {step}{folders.DAMAGED}; using an earlier one"
            for step, reason in self.damaged.items()
        ]
        if not changes:
            return lines
        rows = [("field", "was", "is"), *((c.field, config.brief(c.was), config.brief(c.now)) for c in changes)]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        table = [f"  {field:<{widths[0]}}  {was:<{widths[1]}}  {now}" for field, was, now in rows]
        lines.append("\n".join([f"differences from the saved run (step {self.step}):", *table]))
        steps = np.unique(np.linspace(self.step, max(self.step, run.train.steps - 1), 1000, dtype=np.int64))
        was, now = (
            _rates(other.schedule.rate(other.train.steps, self.plan(config.resolve_phases(other))), steps)
            for other in (self.saved_run, run)
        )
        differs = np.flatnonzero(~np.isclose(was, now, rtol=1e-5, atol=0))
        if len(differs):
            first = differs[0]
            lines.append(
                f"this changes the learning rate from step {steps[first] + 1} on: it is {now[first]:.3g} "
                f"instead of {was[first]:.3g}"
            )
        return lines


def _rates(rate: schedules.Rate, steps: np.ndarray) -> np.ndarray:
    return np.array([schedules.at(rate, int(step)) for step in steps])


def find_latest_checkpoint(workdir: str, num_steps: int, refuse_damaged: bool = False) -> Resumed | None:
    """Returns the newest undamaged checkpoint of a run directory, or None if there is no checkpoint.

    Args:
      num_steps: number of steps of the run that resumes.
      refuse_damaged: whether a damaged newest checkpoint is an error.

    Raises:
      UserError: every checkpoint is damaged, the newest one is damaged and `refuse_damaged` is set, the newest intact
        one is of a later step than `num_steps`, or its format is unknown.
    """
    with storage.reaching(workdir):
        newest = folders.newest_intact(folders.of_run(workdir), refuse_damaged)
    if newest is None:
        return None
    step = newest.meta["step"]
    if step > num_steps:
        raise UserError(
            f"{workdir} is at step {step}, but config.train.steps is {num_steps}: increase it, or choose another "
            "--workdir"
        )
    return from_meta(workdir, newest.meta, newest.damaged)


def from_meta(
    workdir: str, meta: Mapping[str, Any], damaged: Mapping[int, str] = types.MappingProxyType({})
) -> Resumed:
    """Returns the `Resumed` for a checkpoint of a run directory.

    Args:
      meta: `meta` of the checkpoint.
      damaged: for each newer checkpoint, by step, the reason why it cannot be used.
    """
    saved_run = config.from_saved(meta["config"], meta.get("modules"))
    saved_phases = config.resolve_phases(saved_run)
    if "stages" in meta:
        name = f"the stages of {workdir}'s checkpoint"
        saved_phases = trees.parse(tuple[config.Phase, ...], meta["stages"], name)
    return Resumed(workdir, meta["step"], meta, saved_run, saved_phases, damaged)


def set_damaged_aside(resumed: Resumed | None, workdir: str) -> None:
    """Renames the damaged checkpoints of a run directory, which this job must have locked.

    All processes of the job must call this function.

    Raises:
      UserError: another job has trained in `workdir` since `find_latest_checkpoint`.
    """
    steps = folders.finished_everywhere(folders.of_run(workdir))
    expected = [] if resumed is None else [resumed.step, *sorted(resumed.damaged)]
    if steps[-len(expected) :] != expected if expected else steps:
        raise UserError(f"another process has trained in {workdir} since this one started: run the same command again")
    if jax.process_index() == 0:
        for step in expected[1:]:
            folders.set_aside(folders.of_run(workdir) / str(step))


def plan_phases(saved: Sequence[config.Phase], phases: Sequence[config.Phase], step: int) -> tuple[config.Phase, ...]:
    """Returns the phases of `saved` up to a step, followed by the phases of `phases` after that step.

    Each phase after the step begins with the first example that the phases before it do not read. The phase that
    contains the step is merged with the finished phase before it if they differ only in their steps and examples.
    """
    planned = [dataclasses.replace(s, end_step=min(s.end_step, step)) for s in saved if s.first_step < step]
    for phase in phases:
        if phase.end_step <= max(step, phase.first_step):
            continue
        last = planned[-1] if planned else None
        begins_before, first_step = phase.first_step < step, max(phase.first_step, step)
        example = last.first_example + (last.end_step - last.first_step) * last.batch_size if last else 0
        phase = dataclasses.replace(phase, first_step=first_step, first_example=example)
        ignored = {name: getattr(phase, name) for name in ("first_step", "end_step", "first_example")}
        if last and begins_before and dataclasses.replace(last, **ignored) == phase:
            planned[-1] = dataclasses.replace(phase, first_step=last.first_step, first_example=last.first_example)
        else:
            planned.append(phase)
    return tuple(planned)


def spans_of_rows(
    phases: Sequence[config.Phase], step: int
) -> list[tuple[int, int, dict[str, float], dict[str, Any], int]]:
    """Splits the first `step` steps into spans of steps with the same row length, batch size, mixture and objective.

    Returns:
      A list of tuples, one per span: row length, batch size, mixture, fields of the objective, number of steps.
    """
    spans: list[tuple[int, int, dict[str, float], dict[str, Any], int]] = []
    for phase in phases:
        num_steps = min(phase.end_step, step) - phase.first_step
        rows = phase.length, phase.batch_size, phase.mixture, phase.objective
        if num_steps <= 0:
            continue
        if spans and spans[-1][:-1] == rows:
            num_steps += spans.pop()[-1]
        spans.append((*rows, num_steps))
    return spans
