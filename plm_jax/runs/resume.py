"""Going on with a run: what differs from how it was trained so far, whether that may be, and what is read next."""

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
from plm_jax.models import registry
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import run_directory
from plm_jax.training import schedules

# What a change of each field of a config means to a run that goes on; all of it is told. A name stands for all that is
# below it, and the longest one counts: of what has a part with a name of its own, each part has one.
#
#   free    no number changes but in rounding
#   recipe  what is learned from here on changes, and nothing of what was
#   read    the length, batch size and mixture of steps: refused where they change for steps that were taken
#   cache   texts and vocabulary: refused where the caches that `prepare` makes of them are others, see `caches`
#   fixed   every example or every draw changes, or the state cannot be restored: refused
Meaning = Literal["free", "recipe", "read", "cache", "fixed"]
FIELDS: dict[str, Meaning] = {
    "model": "fixed",  # Another kind.
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
            *("span_boundary", "generator", "discriminator", "lstm", "initializer"),
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
    "data.sources": "cache",
    "data.threads": "free",
    "data.validation_fraction": "cache",
    "data.window_tokens": "fixed",
    "vocabulary": "cache",
    "optimizer": "fixed",  # But for what its class says is `recipe`.
    "schedule": "recipe",
    "train.batch_size": "read",
    "train.epochs": "free",  # What is read goes by the steps that they come to.
    "train.init_from": "free",  # Only the first step takes it, `init_names` and `reinitialise_top`.
    "train.init_names": "free",
    "train.new_tokens": "free",
    "train.reinitialise_top": "free",
    "train.trainable": "fixed",  # The moments are of it alone.
    "train.incidents": "recipe",
    "train.label_smoothing": "recipe",
    "train.log_every": "free",
    "train.log_norms": "free",
    "train.microbatches": "recipe",  # Each draws for itself what is dropped.
    "train.phases": "read",
    "train.prng": "fixed",
    "train.profile_steps": "free",
    "train.seed": "fixed",
    "train.stall_minutes": "free",
    "train.steps": "read",
    "train.wandb_project": "free",
    "train.z_loss": "recipe",
    "mesh": "free",
    "precision": "recipe",
    "checkpoint": "free",
    "evaluation": "free",
    "versions": "free",
}
# How many fields the line of a refusal names.
_NAMED = 5


def meaning(field: str, optimizer: config.OptimizerConfig) -> Meaning:
    """What a change of a field, by its dotted path, means to a run that goes on with an optimizer."""
    section, _, name = field.partition(".")
    if section == "optimizer" and name in optimizer.recipe:
        return "recipe"
    while field not in FIELDS:
        field = field.rpartition(".")[0]
    return FIELDS[field]


class Change(NamedTuple):
    """A field that differs, and whether that is refused unless changes are allowed."""

    field: str
    was: Any
    now: Any
    refused: bool


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run goes on from.

    Attributes:
      step: its step.
      meta: what it says of itself.
      before: the config of its run.
      stages: what was read up to it, and from there on what the config of now says.
      damaged: of newer checkpoints, by their steps, why they cannot be used.
    """

    workdir: str
    step: int
    meta: Mapping[str, Any]
    before: config.Run
    stages: tuple[config.Phase, ...]
    damaged: Mapping[int, str]

    def changes(
        self, run: config.Run, caches: Mapping[str, str], vocabulary_id: str, mesh: Mapping[str, int]
    ) -> list[Change]:
        """How a run differs from the one before; of caches their identities by source, of the mesh its true shape."""
        was, now = config.to_dict(self.before), config.to_dict(run)
        was["mesh"] |= self.meta["mesh"]
        now["mesh"] |= mesh
        now["versions"] = run_directory.versions()
        was["versions"] = self.meta.get("versions", now["versions"])
        before, after = (taken(config.resolve_phases(each), self.step) for each in (self.before, run))
        reads_anew = before != after
        found = []
        for field, *values in config.differences(was, now):
            means = meaning(field, run.optimizer)
            refused = means == "fixed" or (means == "read" and reads_anew)
            found.append(Change(field, *values, refused))
        if self.meta["vocabulary_id"] != vocabulary_id:
            found.append(Change("the vocabulary", self.meta["vocabulary_id"][:12], vocabulary_id[:12], True))
        for name, (then, code) in users.changed(self.meta.get("modules", {}), run).items():
            found.append(Change(f"the code in {name}", then, code, True))
        before = self.meta.get("caches", caches)  # Checkpoints of old do not say.
        by_size = not all(stage.mixture for stage in self.stages if stage.first_step < self.step)
        for field, *values in config.differences(before, caches):
            # Without rates, another source changes what is read of all.
            if by_size or field in before.keys() & caches.keys():
                found.append(Change(f"the cache of '{field}'", *(str(value)[:12] for value in values), True))
        return found

    def check(self, run: config.Run, changes: Sequence[Change], allow_changes: bool) -> None:
        """Raises a `UserError` where changes are refused, or make weights that do not fit the model."""
        refused = [change for change in changes if change.refused]
        named = [f"{c.field} was {config.brief(c.was)} and is {config.brief(c.now)}" for c in refused[:_NAMED]]
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        what = ", ".join(named) + more
        of_model = any(change.field.split(".")[0] == "model" for change in refused)
        if of_model and registry.shapes(self.before.model) != registry.shapes(run.model):
            raise UserError(f"{self.workdir} holds a run of another model ({what}): choose another --workdir")
        if refused and not allow_changes:
            raise UserError(
                f"checkpoint {self.step} of {self.workdir} was trained otherwise ({what}): change that back, choose "
                "another --workdir, or go on from it all the same with --allow_changes"
            )

    def notes(self, run: config.Run, changes: Sequence[Change]) -> list[str]:
        """What to say of the checkpoint, of changes, and whether the learning rate of the steps to come is another."""
        told = [
            f"checkpoint {step} is damaged ({reason}): it is kept as {step}{folders.DAMAGED}, the one before is taken"
            for step, reason in self.damaged.items()
        ]
        if not changes:
            return told
        rows = [("field", "was", "is"), *((c.field, config.brief(c.was), config.brief(c.now)) for c in changes)]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        table = [f"  {field:<{widths[0]}}  {was:<{widths[1]}}  {now}" for field, was, now in rows]
        said = [*told, "\n".join([f"what differs from the run up to step {self.step}:", *table])]
        stages_before = planned(self.stages, config.resolve_phases(self.before), self.step)
        steps = np.unique(np.linspace(self.step, max(self.step, run.train.steps - 1), 1000, dtype=np.int64))
        was, now = (
            _rates(of.schedule.rate(of.train.steps, stages), steps)
            for of, stages in ((self.before, stages_before), (run, self.stages))
        )
        differs = np.flatnonzero(~np.isclose(was, now, rtol=1e-5, atol=0))
        if len(differs):
            first = differs[0]
            said.append(
                f"the learning rates to come change with that: that of step {steps[first] + 1} is {now[first]:.3g} "
                f"and would have been {was[first]:.3g}"
            )
        return said


def _rates(rate: schedules.Rate, steps: np.ndarray) -> np.ndarray:
    return np.array([schedules.at(rate, int(step)) for step in steps])


def find(run: config.Run, workdir: str, refuse_damaged: bool = False) -> Resumed | None:
    """The newest checkpoint of a run directory that is not damaged, to go on from; None where there is none.

    Raises:
      UserError: none of those there are can be used, or it is beyond the last step; with `refuse_damaged` the newest is
        damaged.
    """
    with storage.reaching(workdir):
        found = folders.newest_good(folders.of_run(workdir), refuse_damaged)
    if found is None:
        return None
    step = found.meta["step"]
    if step > run.train.steps:
        raise UserError(
            f"{workdir} is at step {step}, config.train.steps is {run.train.steps}: raise it, or choose another "
            "--workdir"
        )
    return of(run, workdir, found.meta, found.damaged)


def of(
    run: config.Run, workdir: str, meta: Mapping[str, Any], damaged: Mapping[int, str] = types.MappingProxyType({})
) -> Resumed:
    """A checkpoint of a run directory, by its `meta`, as one that the run goes on from; `damaged` as of `Resumed`."""
    before = config.from_saved(meta["config"], meta.get("modules"))
    read = config.resolve_phases(before)
    if "stages" in meta:
        read = trees.parse(tuple[config.Phase, ...], meta["stages"], f"the stages of {workdir}'s checkpoint")
    step = meta["step"]
    return Resumed(workdir, step, meta, before, planned(read, config.resolve_phases(run), step), damaged)


def take(resumed: Resumed | None, workdir: str) -> None:
    """Sets the damaged checkpoints of a run directory that this job has come to hold aside; all its processes call it.

    Raises:
      UserError: another job has trained in it since `find`.
    """
    steps = folders.finished(folders.of_run(workdir))
    expected = [] if resumed is None else [resumed.step, *sorted(resumed.damaged)]
    if folders.anywhere(steps[-len(expected) :] != expected if expected else bool(steps)):
        raise UserError(f"another process trained in {workdir} meanwhile: run the same command again")
    if jax.process_index() == 0:
        for step in expected[1:]:
            folders.set_aside(folders.of_run(workdir) / str(step))


def planned(read: Sequence[config.Phase], stages: Sequence[config.Phase], step: int) -> tuple[config.Phase, ...]:
    """The stages of `read` up to a step, and from there on those of `stages`, whose examples follow on."""
    found = [dataclasses.replace(s, end_step=min(s.end_step, step)) for s in read if s.first_step < step]
    for stage in stages:
        if stage.end_step <= max(step, stage.first_step):
            continue
        last = found[-1] if found else None
        first_step = max(stage.first_step, step)
        example = last.first_example + (last.end_step - last.first_step) * last.batch_size if last else 0
        stage = dataclasses.replace(stage, first_step=first_step, first_example=example)
        same = {name: getattr(stage, name) for name in ("first_step", "end_step", "first_example")}
        if last and dataclasses.replace(last, **same) == stage:
            found[-1] = dataclasses.replace(stage, first_step=last.first_step, first_example=last.first_example)
        else:
            found.append(stage)
    return tuple(found)


def taken(stages: Sequence[config.Phase], step: int) -> list[tuple[int, int, dict[str, float], int]]:
    """The first steps in stretches of the same length, batch size and mixture: these three, and how many steps."""
    found: list[tuple[int, int, dict[str, float], int]] = []
    for stage in stages:
        number = min(stage.end_step, step) - stage.first_step
        rows = stage.length, stage.batch_size, stage.mixture
        if number <= 0:
            continue
        if found and found[-1][:3] == rows:
            number += found.pop()[3]
        found.append((*rows, number))
    return found
