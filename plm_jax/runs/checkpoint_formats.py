"""Formats of trained models: run directories, checkpoints, and converted, Hugging Face and bilm-tf directories.

A converted directory holds a model from any source:

    config.json        format, model, family, special ids and vocabulary; for a run also its config, step and
                       vocabulary id
    model.safetensors  parameters by their paths in plm_jax, with stacked layers; or shards with an index
    vocabulary/        files of the vocabulary
    huggingface/       for a model from Hugging Face: files that conversions copy unchanged
    manifest.json      hash of every file, written last (`common.sealing`)

The weights are stored as safetensors files and not by Orbax, because other frameworks read safetensors, and because
single tensors can be read and written with seeks, also in a bucket.
"""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import traverse_util

from plm_jax import config, objectives
from plm_jax.common import progress, sealing, special_ids, storage, users
from plm_jax.common.errors import UserError, nearest, one_line
from plm_jax.hub import (
    elmo,
    families,
    files,
    hub_files,
    huggingface,
    repositories,
    sentence_transformers,
    sizes,
    tensor_layout,
    vocabulary_files,
)
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models.heads import NoHead
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoints, model_text

FORMAT = 1
FORMATS = ("plm_jax", "huggingface", "sentence-transformers", "bilm")
CONFIG = "config.json"
# Prefixes of files that the Hugging Face Hub and its tools add to a directory.
_ADDED_BY_HUB = ("README.md", ".gitattributes", ".cache/")
_EXPECTED = "expected a run directory, a checkpoint, a converted directory, a Hugging Face directory or hf:ORG/NAME"
# Types of the fields of a converted directory's `config.json`.
FIELDS = {
    **{"format": int, "model": dict, "special_ids": dict, "run": dict | None, "step": int | None},
    **dict.fromkeys(("family", "vocabulary", "vocabulary_id"), str | None),
}


@contextlib.contextmanager
def opened(path: str | os.PathLike[str] | tuple[str, str], average: bool = False) -> Iterator[Pretrained]:
    """Context manager that yields the model at a path; the files there determine the format.

    The parameters can be read until the context exits.

    Args:
      path: a directory; or a repository of the Hugging Face Hub (`hf:ORG/NAME[@REVISION]`), which is downloaded; or,
        for an ELMo, a pair with the paths of the options and the weights. For a run directory, the newest checkpoint is
        opened.
      average: whether to read the moving average of the parameters instead of the parameters. With the average, the
        yielded model has no run directory, so that its metrics are not added to the metrics of the run.

    Raises:
      UserError: the path does not exist or contains no model, a file is missing or damaged, or there is no average.
    """
    with _open(path, average=average) as pretrained:
        yield dataclasses.replace(pretrained, workdir=None) if average else pretrained


@contextlib.contextmanager
def _open(
    path: str | os.PathLike[str] | tuple[str, str], unverified: Sequence[str] = (), average: bool = False
) -> Iterator[Pretrained]:
    """Context manager like `opened`.

    Args:
      unverified: prefixes of the paths that are not compared with the manifest of a converted directory.
    """
    if average and (isinstance(path, tuple) or not _locate(path)[1]):
        raise UserError(f"{path} is not a run or a checkpoint, and has no average of the weights: leave out --average")
    if isinstance(path, tuple):
        yield elmo.read(*map(storage.absolute, map(os.fspath, path)))
        return
    folder, workdir = _locate(path)
    if workdir:
        yield _open_run(folder, workdir, average)
    elif not (described := _read_config(folder)):
        if not (pair := elmo.find(folder)):
            raise UserError(f"{path} has no {CONFIG}: {_hint(os.fspath(path), folder)}")
        yield elmo.read(*pair)
    elif "format" in described or sealing.is_sealed(folder):
        _verify(folder, (*unverified, *_ADDED_BY_HUB), accepts_links=storage.is_repository(os.fspath(path)))
        _check_format(folder, described)
        with files.opened(folder) as tensors:
            with sizes.report_as_damaged(os.path.join(folder, CONFIG)):
                pretrained = _read_converted(folder, described, tensors)
            yield pretrained
    else:
        with huggingface.opened(folder) as pretrained:
            yield pretrained


def _hint(path: str, folder: str) -> str:
    """Returns the advice in the error message for a folder without a model, such as to pass a folder inside it."""
    inner = [name for name in storage.names(folder) if storage.exists(os.path.join(folder, name, CONFIG))]
    if not inner or storage.is_repository(path):
        return _EXPECTED
    return f"pass a directory in it that has one, such as {os.path.join(path, inner[0])}"


def described(path: str) -> Pretrained:
    """Returns the model at a path, as `opened` yields it, without its weights: `params` is empty.

    Raises:
      UserError: for the same reasons as `opened`.
    """
    folder, workdir = _locate(path)
    if workdir:
        meta = folders.checked(folders.newest(folder), ["meta/"])
        return of_run(config.from_saved(meta["config"], meta.get("modules")), {}, workdir, meta)
    with _open(path, ["model"]) as pretrained:
        return dataclasses.replace(pretrained, params={})


def _locate(path: str | os.PathLike[str]) -> tuple[str, str | None]:
    """Returns a pair: the absolute path of a folder, and the run directory that the folder belongs to.

    The run directory is None if the folder is neither a run nor a checkpoint. A repository is downloaded first.
    """
    path = os.fspath(path)
    folder = repositories.download(path) if storage.is_repository(path) else storage.absolute(path).rstrip("/")
    if not storage.exists(folder):
        raise UserError(f"{path} does not exist: {_EXPECTED}")
    above = os.path.dirname(folder)
    workdir = os.path.dirname(above) if os.path.basename(above) == "checkpoints" else folder
    is_run = "config" in _read_config(workdir) or storage.exists(os.path.join(folder, "meta", "metadata"))
    return folder, workdir if is_run else None


def save(directory: str, pretrained: Pretrained, format: str, **pooling: Any) -> None:
    """Writes a model and its vocabulary in one of FORMATS.

    Args:
      pooling: arguments `pooling` and `normalize` of `hub.sentence_transformers.write`; other formats ignore them.

    Raises:
      UserError: the format is unknown or does not support the model, or a Hugging Face tokenizer cannot reproduce the
        vocabulary's ids.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format '{format}': {nearest(format, FORMATS)}")
    if format == "plm_jax":
        _write_converted(directory, pretrained)
    elif (is_elmo := pretrained.model.architecture == "elmo") != (format == "bilm"):
        problem = "does not support ELMos" if is_elmo else "supports only ELMos"
        accepted = "bilm" if is_elmo else "huggingface, sentence-transformers"
        raise UserError(f"format '{format}' {problem}: use {accepted} or plm_jax")
    elif format == "bilm":
        elmo.write(directory, pretrained)
    elif format == "sentence-transformers":
        sentence_transformers.write(directory, pretrained, tokenizer=model_text.tokenizer(pretrained), **pooling)
    else:
        huggingface.write(directory, pretrained, tokenizer=model_text.tokenizer(pretrained))


def format_for_others(pretrained: Pretrained) -> str:
    """Returns a format in which other libraries can read a model, or "plm_jax" if no such format supports the model."""
    if pretrained.model.architecture == "elmo":
        return "plm_jax" if getattr(pretrained.model, "heads", ()) else "bilm"  # bilm has no heads of tasks.
    try:
        huggingface.check(pretrained)
        model_text.tokenizer(pretrained)
    except UserError:
        return "plm_jax"
    return "huggingface"


@contextlib.contextmanager
def converting(path: str, target: str, format: str, average: bool = False, **pooling: Any) -> Iterator[Pretrained]:
    """Context manager that converts like `convert` and yields the model that is converted.

    If the conversion or the body of the context fails, the files in `target` are removed.
    """
    storage.check_new_folder(target)
    with opened(path, average) as pretrained, storage.writing_folder(target):
        save(target, pretrained, format, **pooling)
        names = model_text.unframed(pretrained) if format in ("huggingface", "sentence-transformers") else []
        if names:
            line = (
                f"{path} was trained on rows without {' and '.join(names)}, so the exported tokenizer adds none of them"
            )
            print(f"warning: {line} (data.layout is {pretrained.run.data.layout.kind})", file=sys.stderr, flush=True)
        yield pretrained


def convert(path: str, target: str, format: str, average: bool = False, **pooling: Any) -> str:
    """Converts the model at a path, one tensor at a time.

    Args:
      target: new folder.
      format: one of FORMATS.
      average: whether to convert the moving average of the parameters instead of the parameters.
      pooling: arguments that `save` passes on to sentence-transformers.

    Returns:
      A line with the absolute path of the folder and a summary of the model.

    Raises:
      UserError: the model cannot be read or written (see `opened` and `save`), or `target` is not empty.
    """
    with converting(path, target, format, average, **pooling) as pretrained:
        return f"{storage.absolute(target)}: {summary(pretrained, format)}"


def summary(pretrained: Pretrained, format: str) -> str:
    """Returns a line about a model that is stored in `format`: kind, number of parameters, dtype and heads."""
    written = _written(pretrained, format)
    model, leaves = written.model, jax.tree.leaves(written.params)
    count, dtype = sum(math.prod(leaf.shape) for leaf in leaves), files.common_type(leaves)
    kinds = {name: [getattr(model, name).kind] for name in ("head", "pooler") if hasattr(model, name)}
    if tasks := [head.kind for _, head in model.heads]:
        kinds["head"] = [kind for kind in kinds.get("head", ()) if kind != NoHead.kind] + tasks
    heads = [f"{name}: {' and '.join(each)}" for name, each in kinds.items()]
    return ", ".join([model.kind, f"{count:,} parameters, {dtype}", *heads])


def _written(pretrained: Pretrained, format: str) -> Pretrained:
    """Returns a model without the parts that a format does not store."""
    if format == "sentence-transformers":
        return sentence_transformers.without_heads(pretrained)
    return huggingface.published(pretrained) if format == "huggingface" else pretrained


def _read_config(folder: str) -> dict[str, Any]:
    """Returns the contents of a folder's `config.json`, or {} if the file does not exist."""
    path = os.path.join(folder, CONFIG)
    return files.read_json(path) if storage.exists(path) else {}


def _open_run(folder: str, workdir: str, average: bool) -> Pretrained:
    with sizes.report_as_damaged(folder):
        params, run, meta = checkpoints.load_params(folder, average)
        if not isinstance(meta["vocabulary_id"], str) or type(meta["step"]) is not int:
            raise UserError(f"{folder} is damaged (its step or its vocabulary's id is missing): use another checkpoint")
        arrays: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
        sizes.check(folder, run.model, arrays)
        _with_fitting_shapes(folder, run.model, arrays)
        _report_changed_code(folder, meta.get("modules"), run)
    return of_run(run, params, workdir, meta)


def of_run(
    run: config.Run, params: Mapping[str, Any], workdir: str, meta: Mapping[str, Any] | None = None
) -> Pretrained:
    """Returns the model of a run as a `Pretrained`.

    Args:
      params: parameters of the model; {} if they are not needed.
      workdir: run directory.
      meta: `meta` of the checkpoint; None if the run has no checkpoint yet.
    """
    ids = {f"{name}_token_id": getattr(run.vocabulary, name) for name in special_ids.NAMES if name != "unk"}
    ids["sentinels"] = run.vocabulary.sentinels or None
    ids["lowercase"] = run.vocabulary.lowercase or {"uncased": True, "cased": False}.get(run.vocabulary.train_kind)
    if run.objective.frames and run.model.has_decoder:
        ids["decoder_start_token_id"] = run.vocabulary.eos
    known = {name: token for name, token in ids.items() if token is not None} | _initial_ids(run)
    known |= _frame_ids(run, known)
    vocabulary = _with_folder(run.vocabulary.spec, os.path.join(workdir, vocabulary_files.FOLDER))
    return Pretrained(
        run.model,
        params,
        known,
        vocabulary,
        run=run,
        workdir=workdir,
        step=None if meta is None else meta["step"],
        vocabulary_id=None if meta is None else meta["vocabulary_id"],
    )


def _initial_ids(run: config.Run) -> dict[str, Any]:
    """Returns the entries of `Pretrained.special_ids` for the tokens that a decoder reads before each text."""
    begin = run.data.layout.begin
    if begin == ("bos",):
        return {"begins_with_bos": True}
    return {"begins_with": [getattr(run.vocabulary, name) for name in begin]} if begin else {}


def _frame_ids(run: config.Run, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of `Pretrained.special_ids` for the tokens around texts, between documents and for padding.

    They are needed if the model is saved in a directory that does not contain the run.
    """
    before, after = model_text.frame(run.model, ids, run)
    frame: dict[str, Any] = {"ends_with": after} | (
        {} if before == model_text.begins_with(ids) else {"begins_with": before}
    )
    if run.model.architecture != "decoder":
        return frame
    vocabulary = run.vocabulary
    if vocabulary.eos is not None:
        frame["separator_token_id"] = vocabulary.eos
    if isinstance(run.objective, objectives.LabeledObjective) and vocabulary.pad is None:
        # A classifier of `transformers` reads the last token of a row that is not padding. Any special token except the
        # one that ends a row can be the padding.
        marks = (vocabulary.eos, vocabulary.bos, vocabulary.sep, vocabulary.unk)
        usable = [mark for mark in marks if mark not in (None, after[-1])]
        frame |= {"pad_token_id": usable[0]} if usable else {}
    return frame


def _with_folder(spec: str, folder: str) -> str:
    """Returns a vocabulary's spec with the folder of its files replaced by `folder`."""
    scheme, colon, paths = spec.partition(":")
    return scheme + colon + ",".join(os.path.join(folder, os.path.basename(path)) for path in paths.split(",") if path)


def _write_converted(directory: str, pretrained: Pretrained) -> None:
    vocabulary = pretrained.vocabulary
    vocabulary_contents = files.contents(vocabulary or "")
    kept_files = {name: storage.read(path) for name, path in pretrained.hub_files.items()}  # May be of `directory`.
    for name in (sealing.MANIFEST, CONFIG, vocabulary_files.FOLDER, hub_files.FOLDER):
        storage.remove(os.path.join(directory, name))
    files.write(directory, {path: files.Content.of(leaf) for path, leaf in pretrained.flat().items()})
    for folder, contents in ((vocabulary_files.FOLDER, vocabulary_contents), (hub_files.FOLDER, kept_files)):
        for name, content in contents.items():
            storage.write(os.path.join(directory, folder, name), content)
    described = {
        "format": FORMAT,
        "model": config.to_dict(pretrained.model),
        "family": pretrained.family,
        "special_ids": pretrained.special_ids,
        "vocabulary": vocabulary and _with_folder(vocabulary, vocabulary_files.FOLDER),
        "vocabulary_id": pretrained.vocabulary_id,
        "modules": users.used({"model": pretrained.model, "run": pretrained.run}),
        "run": pretrained.run and config.to_dict(pretrained.run),
        "step": pretrained.step,
    }
    files.write_json(os.path.join(directory, CONFIG), described)
    sealing.seal(directory, {"format": FORMAT})


def _verify(folder: str, unverified: Sequence[str], accepts_links: bool) -> None:
    try:
        with progress.doing(f"verifying {folder}"):
            sealing.verify(folder, outside=unverified, accepts_links=accepts_links)
    except (sealing.DamagedError, OSError) as error:
        raise UserError(f"{folder} is damaged ({one_line(error)}): convert again, or use a copy of it") from error


def _report_changed_code(folder: str, modules: users.Record | None, settings: Any) -> None:
    """Prints a line for each of the user's modules whose code has changed since a model was saved."""
    for name, (was, now) in users.changed(modules or {}, settings).items():
        line = f"the code in {name} has changed since {folder} was written (it was {was} and is {now})"
        print(line, file=sys.stderr, flush=True)


def _check_format(folder: str, described: Mapping[str, Any]) -> None:
    if described["format"] != FORMAT:
        raise UserError(
            f"{folder} has format {described['format']}, but this version of plm_jax reads format {FORMAT}: use the "
            "version that wrote it"
        )
    if wrong := [name for name, kind in FIELDS.items() if not isinstance(described.get(name, ...), kind)]:
        reason = f"its {', '.join(wrong)} is missing or of another type"
        raise UserError(f"{folder}/{CONFIG} is damaged ({reason}): convert again")


def _read_converted(folder: str, described: Mapping[str, Any], tensors: Mapping[str, files.StoredTensor]) -> Pretrained:
    path, modules = os.path.join(folder, CONFIG), described.get("modules")
    model = config.model_from_saved(described["model"], f"{path}: model", modules)
    sizes.check(path, model, tensors)
    sizes.check_ids(path, described["special_ids"])
    run, vocabulary = described["run"] and config.from_saved(described["run"], modules), described["vocabulary"]
    _report_changed_code(folder, modules, {"model": model, "run": run})
    family = families.registered().get(described["family"])
    return Pretrained(
        model,
        traverse_util.unflatten_dict(_with_fitting_shapes(folder, model, tensors), sep="/"),
        described["special_ids"],
        vocabulary and _with_folder(vocabulary, os.path.join(folder, vocabulary_files.FOLDER)),
        described["family"],
        run=run,
        step=described["step"],
        vocabulary_id=described["vocabulary_id"],
        hub_files=hub_files.find(os.path.join(folder, hub_files.FOLDER), family) if family else {},
    )


def _with_fitting_shapes(folder: str, model: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `tensors` unchanged after checking that their names, shapes and dtypes fit the model."""
    shapes = tensor_layout.shapes_of(model)
    files.refuse_misfits(
        f"the weights in {folder} do not fit its {CONFIG}",
        {
            "missing": shapes.keys() - tensors.keys(),
            "unknown": tensors.keys() - shapes.keys(),
            "misshapen": [
                f"{path} is {_dtype_name(tensors[path])} {list(tensors[path].shape)} and not {list(shape)}"
                for path, shape in shapes.items()
                if path in tensors and (tensors[path].shape != shape or _dtype_name(tensors[path]) not in files.FLOATS)
            ],
        },
    )
    return tensors


def _dtype_name(array: Any) -> str:
    """Returns the name that safetensors files use for the dtype of an array."""
    if isinstance(array, files.StoredTensor):
        return array.code
    return next((code for code, dtype in files.FLOATS.items() if dtype == array.dtype), str(array.dtype))
