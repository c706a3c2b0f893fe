"""Users' own code: loads users' Python files as modules, and records the code that settings use.

A file is the same module whether it is loaded as a config file, with `--module=FILE` or by an import from a file next
to it. Each class in the file therefore exists once. The module is named as a submodule of `plm_jax.common.users`, so
that child processes can unpickle settings with the module's classes. An environment variable lists the files for child
processes. A package next to a file keeps its name, and the variable lists the package's folder. Only users' code
imports modules from the folder of a user's file: a library that looks for an optional `torch` never imports a user's
`torch.py`.

Settings may name a module of tasks or of a segmenter. The module is imported only if the command line or the user's own
config names it. Loading a checkpoint, which may come from anyone, runs no code.
"""

import contextlib
import dataclasses
import functools
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

from plm_jax.common import package
from plm_jax.common.errors import UserError, one_line, users_code
from plm_jax.common.roles import Role
from plm_jax.common.users import code

# JSON lists of the files and packages that this process has loaded, and of the modules that may be imported by name.
_ENVIRONMENT, _TRUSTED = "PLM_JAX_USERS_FILES", "PLM_JAX_USERS_MODULES"

# Function of a config file that is left out of hashes, because a run records its result field by field.
_GET_CONFIG = "get_config"

# Record of each module, by file or name: `sha256` of its code, `imports` (the hashes of what it imports from its
# folder), and `kinds` (the kinds that settings use from it, by their paths in the settings).
Record = Mapping[str, Mapping[str, Any]]


class MissingCodeError(UserError):
    """Raised when settings need a user's code that is not loaded."""


def load(name: str) -> ModuleType:
    """Loads the module that a user names, as a file (`my_code.py`) or as an importable name (`my_package.code`).

    `my_code` also loads the file `my_code.py`.

    Raises:
      UserError: there is no such module, or its code fails. If the code fails, the message names the line.
    """
    file = name if name.endswith(".py") else f"{name}.py"
    if os.path.isfile(file):
        trust([_stem(file)])
        return module(file)
    # A relative name, or one with an empty part, names no module.
    is_importable = not name.endswith(".py") and all(part.isidentifier() for part in name.split("."))
    spec = _spec(name) if is_importable else None
    if spec is None and is_importable and os.path.isdir(package := name.partition(".")[0]):
        _list(package)
        spec = _spec(name)
    if spec is None:
        raise UserError(f"--module={name}: there is no such module; pass a file, or the name of an installed one")
    trust([name])
    with users_code(spec.origin or ""):
        return importlib.import_module(name)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as `__main__`.
        return None


def trust(names: Iterable[str]) -> None:
    """Allows the function `imported` to import these modules, which the command line or the user's own config names."""
    os.environ[_TRUSTED] = json.dumps(sorted({*_listed(_TRUSTED), *names}))


def imported(name: str) -> ModuleType:
    """Imports a module named in settings, which may come from a checkpoint; rejects modules that are not trusted.

    Raises:
      MissingCodeError: neither the command line nor the user's own config names the module.
      ImportError: the module does not exist, or its package cannot be imported.
      UserError: its code fails; the message names the line.
    """
    if name not in _listed(_TRUSTED):
        raise MissingCodeError(f"the module '{name}' is imported only if you name it: pass --module={name}")
    spec = importlib.util.find_spec(name)
    with users_code(spec.origin or "") if spec else contextlib.nullcontext():
        return importlib.import_module(name)


def module(path: str) -> ModuleType:
    """Returns a Python file as a module, which is the same at each call until the file changes.

    A file of `plm_jax`, or a file that was imported by name, is returned as the module of that name.

    Raises:
      UserError: its code fails; the message names the line.
      OSError: the file cannot be read.
    """
    path = os.path.abspath(path)
    if dotted := _of_package(path):
        with users_code(path):
            return importlib.import_module(dotted)
    name = _name(path)
    with open(path, "rb") as file:
        source = file.read()
    if name in sys.modules and vars(sys.modules[name])["__source__"] == source:
        return sys.modules[name]
    imported = sys.modules.get(_stem(path))
    if imported and os.path.realpath(getattr(imported, "__file__", None) or "") == os.path.realpath(path):
        return imported
    _list(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # The name ends in `.py`.
    new = importlib.util.module_from_spec(spec)
    vars(new)["__source__"] = source
    before, sys.modules[name] = sys.modules.get(name), new  # Dataclasses look for their module there.
    try:
        with users_code(path):
            exec(_compiled(source, path), vars(new))
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return new


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        return compile(source, path, "exec")
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        if getattr(error, "filename", None):  # The error names the line.
            raise
        raise UserError(f"{path} is not valid Python code ({one_line(error) or type(error).__name__})") from error


def used(settings: Any) -> dict[str, dict[str, Any]]:
    """Returns the `Record` of the users' modules that define classes of the settings, or losses that the settings name.

    The key of a module in a package is its name, and the key of any other module is its file. `--module` accepts both.
    """
    record: dict[str, dict[str, Any]] = {}
    for path, part in _parts(settings, ""):
        # A loss is not part of the settings: an objective or a head names its kind.
        named = {f"{path}.loss": _choices(part.loss)} if isinstance(getattr(part, "loss", None), str) else {}
        for field, choices in ({path: [type(part)]} | named).items():
            for choice in choices:
                if _is_users(name := choice.__module__):
                    of_module = record.setdefault(_module_flag(name), {**_hashes(name), "kinds": {}})
                    of_module["kinds"][field] = getattr(choice, "kind", choice.__qualname__)
    return record


def _choices(kind: str) -> list[type]:
    """Returns the classes of this kind in every role."""
    return [role.choices[kind] for role in Role.__subclasses__() if kind in role.choices]


def flags(settings: Any) -> list[str]:
    """Returns the `--module` flags that another process needs to import the users' modules that settings use."""
    return [f"--module={name}" for name in used(settings)]


def digests(name: str) -> list[str]:
    """Returns the hash of a module's code, followed by the hashes of the files that it imports from its folder.

    Returns an empty list if the module is not installed here or has no file.

    The module is not imported, so its name may come from an untrusted checkpoint.
    """
    first, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    located = list(code.specs(spec, parts))
    if len(located) <= len(parts) or not (file := located[-1].origin):
        return []
    hashes = _hashed(file, _source(file), os.path.dirname(code.place(spec)))
    return [hashes["sha256"], *hashes["imports"].values()]


def check(record: Record, error: UserError) -> None:
    """Checks that the modules of saved settings are loaded.

    Args:
      record: modules that the settings were saved with.
      error: error raised when the settings were parsed; becomes the cause.

    Raises:
      MissingCodeError: a module is not loaded; the message names the `--module` flags to add.
    """
    users_modules = [module for name, module in list(sys.modules.items()) if module is not None and _is_users(name)]
    loaded = {os.path.basename(getattr(module, "__file__", None) or "") for module in users_modules}
    missing = [name for name in record if name not in sys.modules and os.path.basename(name) not in loaded]
    if missing:
        kinds = sorted({f"'{kind}'" for name in missing for kind in record[name]["kinds"].values()})
        flags = " ".join(f"--module={name}" for name in missing)
        verb = "is" if len(kinds) == 1 else "are"
        reason = f"{', '.join(kinds)} {verb} defined in Python code that is not loaded"
        raise MissingCodeError(f"{reason}: pass {flags}") from error


def changed(record: Record, settings: Any) -> dict[str, tuple[str, str]]:
    """Returns pairs (recorded hash, current hash) by file or module name, for users' code that has changed.

    Covers the modules that the settings use now, and the files that these modules import. The hashes are shortened. An
    import that did not exist then, or does not exist now, has the hash "none".
    """
    was = {path: one for one in record.values() for path in one["kinds"]}
    changes: dict[str, tuple[str, str]] = {}
    for name, one in used(settings).items():
        folder = os.path.dirname(name) if os.path.isabs(name) else _folder(name)
        for before in (was[path] for path in one["kinds"] if path in was):
            if before["sha256"] != one["sha256"]:
                changes[name] = before["sha256"][:12], one["sha256"][:12]
            then, now = before.get("imports", {}), one["imports"]
            for file in sorted(then.keys() | now.keys()):
                if then.get(file) != now.get(file):
                    changes[os.path.join(folder, file)] = then.get(file, "none")[:12], now.get(file, "none")[:12]
    return changes


def _is_users(name: str) -> bool:
    return name.split(".")[0] != "plm_jax" or name.startswith(f"{__name__}.")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields pairs (dotted path, dataclass) for the dataclasses in settings."""
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


def _file(name: str) -> str:
    """Returns the file of a module; "" if it has none."""
    file = getattr(sys.modules[name], "__file__", None)
    return os.path.abspath(file) if file else ""


def _module_flag(name: str) -> str:
    """Returns the value of `--module` that loads a module: its name in a package, otherwise its file."""
    file = _file(name)
    return file if file and ("." not in name or name.startswith(f"{__name__}.")) else name


def _folder(name: str) -> str:
    """Returns the folder that contains a module or its top-level package; absolute imports are relative to it."""
    file = _file(name)
    levels = 0 if name.startswith(f"{__name__}.") else name.count(".") + (os.path.basename(file) == "__init__.py")
    return os.path.normpath(os.path.join(os.path.dirname(file), *[os.pardir] * levels))


def _hashes(name: str) -> dict[str, Any]:
    """Returns the `sha256` and `imports` fields of a `Record` for a loaded module."""
    file = _file(name)
    return _hashed(file, _source(file), _folder(name))


@functools.cache
def _hashed(file: str, source: bytes, root: str) -> dict[str, Any]:
    imports = code.imports(file, source, root, _source, without=_GET_CONFIG) if file else {}
    return {"sha256": code.digest(source, without=_GET_CONFIG), "imports": imports}


def _source(file: str) -> bytes:
    """Returns the code of a file as this process has loaded it, or would load it; empty if there is no such file."""
    loaded = sys.modules.get(_name(file))
    return _read(file) if loaded is None else vars(loaded)["__source__"]


@functools.cache
def _read(file: str) -> bytes:
    """Returns the bytes of a file as they were at the first call; empty if there is no such file."""
    if not os.path.isfile(file):
        return b""
    with open(file, "rb") as opened:
        return opened.read()


def _list(path: str) -> None:
    """Adds a file or a package's folder to the list of users' code that this process and its children have loaded."""
    os.environ[_ENVIRONMENT] = json.dumps(list(dict.fromkeys([*_listed(_ENVIRONMENT), os.path.abspath(path)])))


def _listed(variable: str) -> list[str]:
    return json.loads(os.environ.get(variable, "[]"))


def _stem(path: str) -> str:
    return os.path.basename(path).removesuffix(".py")


def _name(path: str) -> str:
    """Returns the name of a file's module. The name is unique to the file."""
    return f"{__name__}.{_stem(path)}_{zlib.crc32(os.path.realpath(path).encode()):08x}"


def _of_package(path: str) -> str | None:
    """Returns the name of the module of `plm_jax` that a file defines; None for any other file."""
    real = os.path.realpath(path)
    configs = os.path.join(package.FOLDER, "configs")
    for name, folder in (("plm_jax.configs", configs), ("plm_jax", package.FOLDER)):
        inside = os.path.relpath(real, os.path.realpath(folder))
        if not inside.startswith(os.pardir):
            return ".".join([name, *inside.removesuffix(".py").split(os.sep)]).removesuffix(".__init__")
    return None


class _Loader(importlib.abc.Loader):
    """Loader that returns the same module for a file, whatever name it is imported by."""

    def __init__(self, path: str):
        self._path = path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Returns the module, which has been executed."""
        return module(self._path)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing, since the module has been executed."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of users' files, and of modules next to a loaded file.

    A user's file is found by the name of its module in this package. A module next to a loaded file is found by its own
    name. A module that `import` finds elsewhere takes precedence over a module next to a loaded file.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a user's module; None if there is no such module or the importing code may not use it."""
        is_own = name.startswith(f"{__name__}.")
        return _find(name) if is_own or "." not in name else None


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of the user's file named `name`, or of a module of this name next to a loaded file, or None."""
    files = _listed(_ENVIRONMENT)
    if name.startswith(f"{__name__}."):
        file = next((file for file in files if _name(file) == name), None)
        return importlib.util.spec_from_loader(name, _Loader(file), origin=file) if file else None
    # Any code may import a loaded package, since unpickling a class of it does.
    loaded = [os.path.dirname(file) for file in files if os.path.basename(file) == name]
    for folder in dict.fromkeys([*loaded, *_searched(_importer(), files)]):
        spec = code.beside(name, folder)
        if spec is None:
            continue
        if spec.submodule_search_locations:
            _list(os.path.join(folder, name))
            return spec
        if spec.origin and spec.origin.endswith(".py"):
            return importlib.util.spec_from_loader(name, _Loader(spec.origin), origin=spec.origin)
        return spec
    return None


def _importer() -> str:
    """Returns the file of the code that is importing a module, skipping the frames of Python's import system."""
    frame = sys._getframe(3)  # The caller of `find_spec`.
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


def _searched(importer: str, files: Sequence[str]) -> list[str]:
    """Returns the folders to search for a module that the file `importer` imports.

    A user's file searches its own folder. This module searches the folders of all loaded files. Other files search
    none.
    """
    folders = [os.path.dirname(file) for file in files]
    if importer == __file__:
        return folders
    return [
        folder
        for file, folder in zip(files, folders, strict=True)
        if importer == file or importer.startswith(f"{file}{os.sep}")
    ]


sys.meta_path.insert(0, _Finder())
