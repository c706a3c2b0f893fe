"""Code of users' own: their Python files as modules, and what settings take of it.

A file is one module however it is found, as a config page, by `--module=FILE` or by an import from a file beside it: a
class in it exists once. Its module is a part of this package by name, so that processes which this one starts find it
when they are handed settings of its classes; their environment lists the files. Nothing else is read from there.

Settings may name a module, of tasks or of a segmenter. It is imported if the command line or a config of the user's own
names it: a checkpoint, which may be anyone's, runs no code.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

import plm_jax
from plm_jax.common.errors import UserError, one_line, users_code

_PACKAGE = os.path.dirname(os.path.abspath(plm_jax.__file__))
# The files that this process has loaded, and the modules that may be imported by their names, both as JSON.
_ENVIRONMENT, _TRUSTED = "PLM_JAX_USERS_FILES", "PLM_JAX_USERS_MODULES"

# What is noted of a module: its hash, and by their paths the kinds that settings take of it.
Record = Mapping[str, Mapping[str, Any]]


class MissingCodeError(UserError):
    """Something was made with code of a user's that is not loaded."""


def load(given: str) -> ModuleType:
    """The module that a user names: a file, `my_code.py`, or what an import would find, `my_package.code`.

    Raises:
      UserError: there is none, or its code fails; the line is named.
    """
    file = given if given.endswith(".py") else f"{given}.py"
    if os.path.isfile(file):
        trust([_stem(file)])
        return module(file)
    # A name that is relative, or has an empty part, is no module's.
    is_name = not given.endswith(".py") and all(part.isidentifier() for part in given.split("."))
    try:
        found = importlib.util.find_spec(given) if is_name else None
    except (ImportError, ValueError):  # Of a module that is there, but was not found by an import: `__main__`.
        found = None
    if found is None:
        raise UserError(f"--module={given}: there is no such module; give a file, or the name of an installed one")
    trust([given])
    with users_code(found.origin or ""):
        return importlib.import_module(given)


def trust(names: Iterable[str]) -> None:
    """Lets `imported` import these modules: the command line or a config of the user's own names them."""
    os.environ[_TRUSTED] = json.dumps(sorted({*_listed(_TRUSTED), *names}))


def imported(name: str) -> ModuleType:
    """The module that settings name, which may be those of a checkpoint: only what is trusted is run.

    Raises:
      MissingCodeError: neither the command line nor a config of the user's own names it.
      ImportError: there is no such module, or one that it imports.
      UserError: its code fails; the line is named.
    """
    if name not in _listed(_TRUSTED):
        raise MissingCodeError(f"'{name}': this is the user's own code, add --module={name}")
    found = importlib.util.find_spec(name)
    with users_code(found.origin or "") if found else contextlib.nullcontext():
        return importlib.import_module(name)


def module(path: str) -> ModuleType:
    """A Python file as a module, the same at each call until the file has changed.

    A file of this package, or one that was imported by its name, is the module that it is there.

    Raises:
      UserError: its code fails; the line is named.
    """
    path = os.path.abspath(path)
    if dotted := _of_package(path):
        with users_code(path):
            return importlib.import_module(dotted)
    name = _name(path)
    with open(path, "rb") as file:
        source = file.read()
    if name in sys.modules and sys.modules[name].__source__ == source:
        return sys.modules[name]
    imported = sys.modules.get(_stem(path))
    if imported and os.path.realpath(getattr(imported, "__file__", None) or "") == os.path.realpath(path):
        return imported
    os.environ[_ENVIRONMENT] = json.dumps(list(dict.fromkeys([*_listed(_ENVIRONMENT), path])))
    found = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    found.__source__ = source
    before, sys.modules[name] = sys.modules.get(name), found  # Where dataclasses look for it.
    try:
        with users_code(path):
            exec(_compiled(source, path), vars(found))
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return found


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        return compile(source, path, "exec")
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        if getattr(error, "filename", None):  # Its line is known.
            raise
        raise UserError(f"{path} is no Python code ({one_line(error) or type(error).__name__})") from error


def used(settings: Any) -> dict[str, dict[str, Any]]:
    """What settings take of users' code: by the file or name of each module, its SHA-256 and the kinds by their paths.

    A module's name stands for it where `--module` takes it so, which is where it is part of a package.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, part in _parts(settings, ""):
        name = type(part).__module__
        if _is_users(name):
            told, digest = _told(name)
            of_module = found.setdefault(told, {"sha256": digest, "kinds": {}})
            of_module["kinds"][path] = getattr(part, "kind", type(part).__qualname__)
    return found


def flags(settings: Any) -> list[str]:
    """The flags by which another process loads the modules that settings are made of."""
    return [f"--module={name}" for name in used(settings)]


def check(record: Record, error: UserError) -> None:
    """Raises what to add if settings could not be read for want of a module that is noted; `error` was the reason.

    Raises:
      MissingCodeError: a module is not loaded.
    """
    held = [module for name, module in list(sys.modules.items()) if module is not None and _is_users(name)]
    loaded = {os.path.basename(getattr(module, "__file__", None) or "") for module in held}
    missing = [name for name in record if name not in sys.modules and os.path.basename(name) not in loaded]
    if missing:
        kinds = sorted({f"'{kind}'" for name in missing for kind in record[name]["kinds"].values()})
        flags = " ".join(f"--module={name}" for name in missing)
        raise MissingCodeError(f"{', '.join(kinds)}: this is the user's own code, add {flags}") from error


def changed(record: Record, settings: Any) -> dict[str, tuple[str, str]]:
    """By the modules that settings are made of now the short hashes, then and now, of those whose code is another."""
    was = {path: one["sha256"] for one in record.values() for path in one["kinds"]}
    found = {}
    for name, one in used(settings).items():
        others = [was[path] for path in one["kinds"] if was.get(path, one["sha256"]) != one["sha256"]]
        if others:
            found[name] = others[0][:12], one["sha256"][:12]
    return found


def _is_users(name: str) -> bool:
    return name.split(".")[0] != "plm_jax" or name.startswith(f"{__name__}.")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The dataclasses of settings with their dotted paths."""
    if dataclasses.is_dataclass(value):
        yield path, value
        items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = list(enumerate(value))
    else:
        return
    for name, item in items:
        yield from _parts(item, f"{path}.{name}" if path else str(name))


def _told(name: str) -> tuple[str, str]:
    """What `--module` takes for a module, and the SHA-256 of its source."""
    found = sys.modules[name]
    file, source = getattr(found, "__file__", None) or "", getattr(found, "__source__", None)
    is_file = file and ("." not in name or name.startswith(f"{__name__}."))
    digest = _digest(file) if source is None else hashlib.sha256(source).hexdigest()
    return os.path.abspath(file) if is_file else name, digest


@functools.cache
def _digest(file: str) -> str:
    """The SHA-256 of a module that Python imported, when it was first asked for; of none that of nothing."""
    if not os.path.isfile(file):
        return hashlib.sha256().hexdigest()
    with open(file, "rb") as opened:
        return hashlib.sha256(opened.read()).hexdigest()


def _listed(variable: str) -> list[str]:
    return json.loads(os.environ.get(variable, "[]"))


def _stem(path: str) -> str:
    return os.path.basename(path).removesuffix(".py")


def _name(path: str) -> str:
    """The name of a file's module: no two files share one."""
    return f"{__name__}.{_stem(path)}_{zlib.crc32(os.path.realpath(path).encode()):08x}"


def _of_package(path: str) -> str | None:
    """Of a file of this package the name of its module."""
    real = os.path.realpath(path)
    for package, folder in (("plm_jax.configs", os.path.join(_PACKAGE, "configs")), ("plm_jax", _PACKAGE)):
        inside = os.path.relpath(real, os.path.realpath(folder))
        if not inside.startswith(os.pardir):
            return ".".join([package, *inside.removesuffix(".py").split(os.sep)]).removesuffix(".__init__")
    return None


class _Loader(importlib.abc.Loader):
    """Gives the one module of a file, under whatever name it is imported."""

    def __init__(self, path: str):
        self._path = path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module, executed."""
        return module(self._path)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds users' files by the names of their modules, and by their own what lies beside one that was loaded.

    What an import would find without it comes first.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """As the base says."""
        files = _listed(_ENVIRONMENT)
        if name.startswith(f"{__name__}."):
            found = [file for file in files if _name(file) == name]
        elif "." not in name:
            beside = dict.fromkeys(os.path.join(os.path.dirname(file), f"{name}.py") for file in files)
            found = [file for file in beside if os.path.isfile(file)]
            usual = importlib.machinery.PathFinder.find_spec(name) if found else None
            if usual is not None and os.path.realpath(usual.origin or "") not in map(os.path.realpath, found):
                found = []
        else:
            found = []
        return importlib.util.spec_from_loader(name, _Loader(found[0]), origin=found[0]) if found else None


sys.meta_path.insert(0, _Finder())
