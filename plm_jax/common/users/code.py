"""Hashes of a user's file and of every file that it imports from its own folder.

Imports are read from the syntax tree, so no user code runs. The hash covers the tree without comments, docstrings and
positions, and is the same on every Python version from 3.11 on.
"""

import ast
import functools
import hashlib
import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence

_machinery = importlib.machinery
_LOADERS = (
    (_machinery.ExtensionFileLoader, _machinery.EXTENSION_SUFFIXES),
    (_machinery.SourceFileLoader, _machinery.SOURCE_SUFFIXES),
    (_machinery.SourcelessFileLoader, _machinery.BYTECODE_SUFFIXES),
)
# Fields of syntax nodes that do not affect what code does.
_FIELDS_WITHOUT_EFFECT = ("kind", "type_comment", "type_ignores")


def digest(source: bytes, without: str = "") -> str:
    """Returns the SHA-256 of a file's syntax tree, or of its bytes if they are not valid Python.

    Args:
      without: name of a top-level function that the hash leaves out if the function contains no class.
    """
    tree = _parse(source, without)
    if tree is None:
        return hashlib.sha256(source).hexdigest()
    tree_hash = hashlib.sha256()
    for word in _words(tree):
        tree_hash.update(word.encode("utf-8", "surrogatepass") + b"\0")
    return tree_hash.hexdigest()


def imports(path: str, source: bytes, root: str, read: Callable[[str], bytes], without: str = "") -> dict[str, str]:
    """Returns the hashes of the files below `root` that a file imports directly or indirectly.

    The keys are paths relative to `root`. Imports that resolve to the standard library, to `plm_jax`, to an installed
    module or to a file outside `root` are not followed. If `root` is itself a folder of installed packages, only
    imports within the file's own package are followed.

    Args:
      path: the file, below `root`.
      source: bytes of the file.
      root: the folder that absolute imports are relative to.
      read: function that returns the bytes of an imported file.
      without: name of a top-level function. Imports in its body are ignored unless it contains a class.
    """
    # In a folder of installed packages, only the file's own package is followed.
    packages = {os.path.relpath(path, root).split(os.sep)[0].removesuffix(".py")} if _is_installed(root) else None
    hashes: dict[str, str] = {}
    waiting = [(path, _parse(source, without))]
    while waiting:
        at, tree = waiting.pop()
        for parts in _imported(tree, os.path.relpath(os.path.dirname(at), root)) if tree else ():
            if parts[0] == "plm_jax" or (packages is not None and parts[0] not in packages):
                continue
            for file in _files(parts, root):
                name = os.path.relpath(file, root)
                if name not in hashes and file != path:
                    data = read(file)
                    hashes[name] = digest(data)
                    waiting.append((file, _parse(data)))
    return dict(sorted(hashes.items()))


def beside(name: str, folder: str) -> importlib.machinery.ModuleSpec | None:
    """Finds a top-level module or package in a folder.

    Returns:
      The spec; None if the folder has no such module, or if `import` would find a module of this name elsewhere first.
    """
    if name in sys.stdlib_module_names or not name.isidentifier():
        return None
    local = _machinery.FileFinder(folder, *_LOADERS).find_spec(name)
    if local is None:
        return None
    usual = _machinery.PathFinder.find_spec(name)
    is_hidden = usual is not None and os.path.realpath(place(usual)) != os.path.realpath(place(local))
    return None if is_hidden else local


def place(spec: importlib.machinery.ModuleSpec) -> str:
    """Returns the folder of a package, or the file of any other module."""
    return next(iter(spec.submodule_search_locations or ()), spec.origin or "")


@functools.cache
def _is_installed(folder: str) -> bool:
    """Whether a folder holds installed packages or the standard library."""
    known = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    known += [*site.getsitepackages(), site.getusersitepackages()]
    return os.path.realpath(folder) in map(os.path.realpath, known)


def _parse(source: bytes, without: str = "") -> ast.Module | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    tree.body = [node for node in tree.body if not (without and _is_left_out(node, without))]
    return tree


def _is_left_out(node: ast.stmt, name: str) -> bool:
    """Whether a statement defines a function of this name that contains no class."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    return is_function and not any(isinstance(below, ast.ClassDef) for below in ast.walk(node))


def _words(tree: ast.Module) -> Iterator[str]:
    """Yields a tree's nodes and fields depth first, with item counts that make the sequence unambiguous."""
    waiting: list[object] = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, ast.Constant):
            constant = value.value
            text = f"{constant:x}" if type(constant) is int else repr(constant)
            yield f"Constant {type(constant).__name__} {text}"
        elif isinstance(value, ast.AST):
            fields = [(name, _with_effect(value, of)) for name, of in ast.iter_fields(value)]
            fields = [
                field for field in fields if field[0] not in _FIELDS_WITHOUT_EFFECT and field[1] not in (None, [])
            ]
            yield f"{type(value).__name__} {len(fields)}"
            for name, of in reversed(fields):
                waiting += [of, name]
        elif isinstance(value, list):
            yield f"list {len(value)}"
            waiting += reversed(value)
        else:
            yield f"{type(value).__name__} {value}"


def _with_effect(node: ast.AST, value: object) -> object:
    """Returns the value of a node's field without items that have no effect.

    These items are docstrings, other constants as statements, `pass`, and empty parts of an f-string.
    """
    if not isinstance(value, list):
        return value
    if isinstance(node, ast.JoinedStr):  # Python 3.12 adds such parts.
        return [part for part in value if not (isinstance(part, ast.Constant) and part.value == "")]
    return [
        item
        for item in value
        if not isinstance(item, ast.Pass) and not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
    ]


def _imported(tree: ast.Module, folder: str) -> Iterator[Sequence[str]]:
    """Yields the parts of each dotted name that a file in `folder` may import; `folder` is relative to the root."""
    package = [] if folder == os.curdir else folder.split(os.sep)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package) + 1:
            base = package[: len(package) + 1 - node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*base, alias.name]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                name = node.args[0].value
                yield [*(package if name.startswith(".") else ()), *name.lstrip(".").split(".")]


def _files(parts: Sequence[str], root: str) -> Iterator[str]:
    """Yields the existing files below `root` that an import of a dotted name runs."""
    return (spec.origin for spec in specs(beside(parts[0], root), parts[1:]) if spec.origin)


def specs(
    spec: importlib.machinery.ModuleSpec | None, parts: Sequence[str]
) -> Iterator[importlib.machinery.ModuleSpec]:
    """Yields the spec of a package and of each nested module in `parts`, up to the first module that does not exist."""
    for part in [*parts, ""]:
        if spec is None:
            return
        yield spec
        folders = list(spec.submodule_search_locations or ())
        if not folders or not part.isidentifier():
            return
        spec = _machinery.FileFinder(folders[0], *_LOADERS).find_spec(part)
