"""Uploads of models to the Hugging Face Hub, with a model card."""

import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from plm_jax import config, models
from plm_jax.common import metrics, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources.files import PathSource
from plm_jax.data.sources.source import RegisteredSource, Source, TfdsSource
from plm_jax.evaluation import baselines
from plm_jax.experiments import model_table
from plm_jax.hub import families, repositories
from plm_jax.hub.families import CONFIG
from plm_jax.hub.family import Family
from plm_jax.hub.pretrained import Pretrained
from plm_jax.runs import checkpoint_formats, run_directory, transfer
from plm_jax.runs.telemetry import read_lines

CARD = "README.md"
# Path of a data set of the Hub that fsspec opens.
_DATASET = "hf://datasets/"


def publish(
    source: str,
    name: str,
    *,
    target: str | None = None,
    format: str = "huggingface",
    private: bool = False,
    license: str | None = None,
    **pooling: Any,
) -> str:
    """Converts a model and uploads it in one commit, with a model card. After a failed upload, call it again.

    Args:
      source: a run, a checkpoint, a converted or a Hugging Face directory, or `hf:ORG/NAME[@REVISION]`.
      name: ORG/NAME of the repository, which is created if it does not exist.
      target: new local folder that keeps the uploaded files; None for a temporary folder. The folder is removed if an
        error occurs.
      format: one of `checkpoint_formats.FORMATS`.
      private: whether the repository must be private.
      license: identifier of a license for the model card; None to leave it out.
      pooling: arguments `pooling` and `normalize` for sentence-transformers; other formats ignore them.

    Returns:
      Several lines of text: a summary of the model, the address of the commit and, if the model card lacks baselines or
      a license, how to add them.

    Raises:
      UserError: the name is invalid, the source cannot be read or converted, the target is not a new local folder, or
        the upload fails.
    """
    if target is not None and storage.is_remote(target):
        raise UserError("--push uploads from a local folder: pass a local --target, or leave it out")
    repositories.parse(f"{storage.REPOSITORY}{name}")  # Rejects a wrong name before the conversion.
    source = transfer.pin(source)
    with ExitStack() as stack:
        folder = target or os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "model")
        with progress.doing(f"converting {source}"):
            pretrained = stack.enter_context(checkpoint_formats.converting(source, folder, format, **pooling))
        base = source if storage.is_repository(source) else _init_from(pretrained)
        card = model_card(name, pretrained, format, license, base, folder)
        storage.write(os.path.join(folder, CARD), card.encode("utf-8"))
        address = repositories.upload(folder, name, private)
    lines = [
        f"{name}: {checkpoint_formats.summary(pretrained, format)}",
        f"uploaded as {storage.REPOSITORY}{name} ({address})",
    ]
    if pretrained.workdir is not None and not _evaluations(pretrained):
        lines.append(
            f"to add baselines to its metrics: plm_jax evaluate --checkpoint={source}, then repeat this command"
        )
    if license is None:
        lines.append("the model card has no license: pass --license=ID, such as apache-2.0, to add one")
    return "\n".join(lines)


def _init_from(pretrained: Pretrained) -> str:
    return "" if pretrained.run is None else pretrained.run.train.init_from


def model_card(name: str, pretrained: Pretrained, format: str, license: str | None, base: str, folder: str) -> str:
    """Returns the model card of a model as Markdown with metadata.

    Args:
      name: ORG/NAME of the repository.
      format: one of `checkpoint_formats.FORMATS`.
      license: identifier of the license; None if the card has no license.
      base: source of the initial weights; "" if there is none.
      folder: directory of the converted model.
    """
    run: config.Run | None = pretrained.run
    sections = {
        "Model": _model(pretrained, format, base),
        "Training data": [] if run is None else _training_data(run),
        "Training": [] if run is None else _training(run, pretrained.workdir),
        "Metrics": _metrics(pretrained),
        "Use": _use(name, pretrained, format, folder),
    }
    body = [line for title, lines in sections.items() if lines for line in (f"## {title}", "", *lines, "")]
    return "\n".join([*_metadata(pretrained, format, license, base), "", f"# {name.partition('/')[2]}", "", *body])


def _metadata(pretrained: Pretrained, format: str, license: str | None, base: str) -> list[str]:
    """Returns the metadata of a model card in YAML. Strings are written as in JSON, which is valid YAML."""
    family = _family(pretrained)
    fields: dict[str, str | list[str]] = {
        "library_name": {"huggingface": "transformers", "sentence-transformers": format}.get(format, "plm_jax"),
        "tags": list(dict.fromkeys(["plm_jax", "jax", family.kind if family else pretrained.model.kind])),
    }
    if license:
        fields["license"] = license
    if storage.is_repository(base):
        fields["base_model"] = repositories.parse(base).name
    if datasets := sorted(filter(None, map(_dataset, _sources(pretrained.run).values()))):
        fields["datasets"] = datasets
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---"]


def _model(pretrained: Pretrained, format: str, base: str) -> list[str]:
    model = pretrained.model
    family = _family(pretrained)
    lines = [f"{family.name if family else model.kind} ({checkpoint_formats.summary(pretrained, format)})."]
    if storage.is_repository(base):
        repository = repositories.parse(base)
        address = f"https://huggingface.co/{repository.name}/tree/{repository.revision}"
        lines.append(f"The initial weights are those of [{repository.name}]({address}).")
    sizes = {"vocabulary": model.vocab_size, "maximum length": model.max_length}
    if isinstance(model, models.TransformerConfig):
        sizes |= {
            "layers": " + ".join(str(stack.layers) for stack in model.stacks),
            "width": model.embedding.width,
            "attention heads": model.attention.heads,
            "feed-forward width": model.feed_forward.width,
        }
    rows = [(name, _shown(size)) for name, size in sizes.items() if size is not None]
    return [" ".join(lines), "", *_table(("Size", "Value"), rows)]


def _family(pretrained: Pretrained) -> Family | None:
    """Returns the Hugging Face family of a model, or None."""
    try:
        return families.family_of(families.published(pretrained.model)[0], pretrained.family)
    except UserError:
        return None


def _sources(run: config.Run | None) -> Mapping[str, Source]:
    return {} if run is None else run.data.sources


def _dataset(source: Source) -> str:
    """Returns the name ORG/NAME of a source that is a data set of the Hub, or "" for other sources."""
    path = source.path if isinstance(source, PathSource) else ""
    return "/".join(path.removeprefix(_DATASET).split("/")[:2]) if path.startswith(_DATASET) else ""


def _training_data(run: config.Run) -> list[str]:
    rates = dict(run.data.mixture)
    rows = [
        (name, source.kind, _location(source), f"{rates[name]:g}" if name in rates else "")
        for name, source in run.data.sources.items()
    ]
    head = ("Source", "Kind", "Data", "Rate")
    return _table(head, rows) if rates else _table(head[:-1], [row[:-1] for row in rows])


def _location(source: Source) -> str:
    """Returns the public name of a source's data.

    For a path, this is the name of the data set or the last part of the path. For sources without a name or a path, it
    is "".
    """
    if isinstance(source, TfdsSource | RegisteredSource):
        return source.name
    return (_dataset(source) or os.path.basename(source.path)) if isinstance(source, PathSource) else ""


def _training(run: config.Run, workdir: str | None) -> list[str]:
    phases = config.resolve_phases(run)
    batches, lengths = (
        model_table.join_phases([getattr(phase, name) for phase in phases]) for name in ("batch_size", "length")
    )
    tree = config.to_dict(run)
    fields = {
        "objective.kind": run.objective.kind,
        "data.layout.kind": run.data.layout.kind,
        "data.length": lengths,
        "train.batch_size": batches,
        "train.steps": run.train.steps,
        **{
            f"{section}.{name}": tree[section][name]
            for section in ("optimizer", "schedule")
            for name in ("kind", "learning_rate", "warmup_steps", "warmup_fraction", "weight_decay", "b1", "b2")
            if tree[section].get(name)
        },
        "precision.compute": run.precision.compute,
        "train.seed": run.train.seed,
    }
    lines = _table(("Field", "Value"), [(f"`{name}`", _shown(value)) for name, value in fields.items()])
    command = _command(workdir)
    return [*lines, "", "```bash", command, "```"] if command else lines


def _command(workdir: str | None) -> str:
    """Returns the last recorded command that started a run, or "" if no command is recorded.

    Absolute paths in the flags are shortened to their last part.
    """
    described = (workdir and run_directory.read(workdir)) or {}
    arguments = next((start["command"] for start in reversed(described.get("history", [])) if start.get("command")), [])
    if not arguments:
        return ""
    script, *flags = arguments
    is_verb = os.path.basename(os.path.dirname(script)) == "cli"
    program = ["plm_jax", os.path.basename(script).removesuffix(".py")] if is_verb else ["python", script]
    return shlex.join([*map(os.path.basename, program), *map(_without_folder, flags)])


def _without_folder(flag: str) -> str:
    name, equals, value = flag.rpartition("=")
    return name + equals + (os.path.basename(value.rstrip("/")) if os.path.isabs(value) else value)


def _metrics(pretrained: Pretrained) -> list[str]:
    """Returns a table of the metrics that `evaluate` recorded for the checkpoint.

    If `evaluate` recorded no metrics, the table has the metrics of the last validation of the run.
    """
    values, step = _evaluations(pretrained), pretrained.step
    if not values:
        values, step = _validation(pretrained)
    rows = []
    for name, value in values.items():
        declared = metrics.declared(name)
        if declared is not None and declared.sign:
            baseline = baselines.trivial_value(values, name)
            shown = "" if baseline is None else metrics.shown(name, baseline)
            rows.append((f"`{name}`", metrics.shown(name, value), shown))
    caption = f"On held-out data, at step {step:,}. The trivial baseline is a predictor that ignores the input."
    return [caption, "", *_table(("Metric", "Value", "Trivial baseline"), rows)] if rows else []


def _evaluations(pretrained: Pretrained) -> dict[str, float]:
    """Returns the metrics of the model's checkpoint in evaluation.jsonl; the last value of a metric counts."""
    rows = [] if pretrained.workdir is None else read_lines(os.path.join(pretrained.workdir, "evaluation.jsonl"))
    values: dict[str, float] = {}
    for row in rows:
        values |= _numbers(row) if row["step"] == pretrained.step else {}
    return values


def _validation(pretrained: Pretrained) -> tuple[dict[str, float], int]:
    """Finds the last validation up to the model's step.

    Returns:
      A pair: the metrics over all sources, and the step of the validation. Without a validation: an empty dict, and 0.
    """
    rows = [] if pretrained.workdir is None else read_lines(os.path.join(pretrained.workdir, "metrics.jsonl"))
    last_step = pretrained.step or 0
    values, step = {}, 0
    for row in rows:
        validation = {n: value for n, value in _numbers(row).items() if re.fullmatch(r"validation/[^/]+", n)}
        if validation and row["step"] <= last_step:
            values, step = validation, row["step"]
    return values, step


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if "/" in name and isinstance(value, int | float)}


def _use(name: str, pretrained: Pretrained, format: str, folder: str) -> list[str]:
    lines = [
        "```bash",
        "pip install '.[hub]'  # in a checkout of plm_jax",
        "```",
        "",
        "```python",
        "import plm_jax",
        "",
    ]
    lines += [f'lm = plm_jax.load("{storage.REPOSITORY}{name}")', "```"]
    if format == "sentence-transformers":
        code = ["from sentence_transformers import SentenceTransformer", "", f'model = SentenceTransformer("{name}")']
        return ["```python", *code, 'model.encode(["The state of the Union"])', "```", "", *lines]
    if format != "huggingface":
        return lines
    described: dict[str, Any] = json.loads(storage.read(os.path.join(folder, CONFIG)))
    (architecture,) = described["architectures"]
    classes = ["AutoTokenizer", architecture] if pretrained.vocabulary else [architecture]
    tokenizer = [f'tokenizer = AutoTokenizer.from_pretrained("{name}")'] if pretrained.vocabulary else []
    return [
        *("```python", f"from transformers import {', '.join(classes)}", "", *tokenizer),
        *(f'model = {architecture}.from_pretrained("{name}")', "```", "", *lines),
    ]


def _shown(value: Any) -> str:
    return f"{value:,}" if type(value) is int else f"{value:g}" if type(value) is float else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    cells = [head, ["---"] * len(head), *([text.replace("|", "\\|") for text in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
