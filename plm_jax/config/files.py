"""Config pages: Python files whose `get_config` gives a run, by file, `configs/bert.py:base`, or by name, `bert:base`.

A name is that of a page of `plm_jax.configs`, found wherever the package is installed. Relative paths of a page that is
given as a file count from the file's folder; given by name it reads and writes as if it lay in `./configs`, where the
user stands. However a page is found, by file, by name or by an import, it is one module: a class in it exists once.
"""

import os
import pathlib
from dataclasses import dataclass
from types import ModuleType

import ml_collections

from plm_jax.common import package, users
from plm_jax.common.errors import UserError, nearest, one_line, users_code

FOLDER = os.path.join(package.FOLDER, "configs")
_HINT = "give a config file, such as configs/gpt2.py:small, or a name, such as gpt2:small"


@dataclass(frozen=True)
class ConfigFile:
    """A config page and the size that is asked of it.

    Attributes:
      given: what the user wrote for it, without the size.
      module: the page.
      file: from whose folder its relative paths count; need not be there if the page was given by name.
      size: what follows the colon; None: the page's default.
    """

    given: str
    module: ModuleType
    file: str
    size: str | None

    @property
    def code(self) -> str:
        """Path of the Python file."""
        return self.module.__file__ or ""

    def config(self) -> ml_collections.ConfigDict:
        """What `get_config` of the page gives, as written: unchecked, relative paths relative.

        Raises:
          UserError: the page has no `get_config`, it fails, or it gives something else.
        """
        if not hasattr(self.module, "get_config"):
            raise UserError(f"{self.given} has no function get_config: give a config file")
        try:
            with users_code(self.code):
                tree = self.module.get_config(*() if self.size is None else (self.size,))
        except TypeError as error:  # The call itself: what is raised within has become a line of the file.
            raise UserError(f"{self.given}: {one_line(error)}") from error
        if not isinstance(tree, ml_collections.ConfigDict):
            raise UserError(f"{self.given}: get_config returns no ConfigDict; {_HINT}")
        return tree


def load(given: str, what: str = "--config=", beside: ConfigFile | None = None) -> ConfigFile:
    """The page that a user names, as `FILE.py`, `FILE.py:SIZE`, `NAME` or `NAME:SIZE`.

    Args:
      what: stands before `given` in errors.
      beside: a page from whose folder a relative file counts, instead of the working directory.

    Raises:
      UserError: there is no such page, or its code fails.
    """
    path, colon, size = given.partition(":")
    if path.endswith(".py"):
        folders = (os.path.dirname(beside.code), os.path.dirname(beside.file)) if beside else ("", "")
        source, file = (os.path.join(folder, path) for folder in folders)
        if not os.path.isfile(source):
            raise UserError(f"{what}{path}: there is no such file; {_HINT}")
    else:
        source, file = os.path.join(FOLDER, f"{path}.py"), os.path.join("configs", f"{path}.py")
        if not os.path.isfile(source):
            raise UserError(f"{what}{path}: no config has that name (a file ends in .py); {nearest(path, names())}")
    return ConfigFile(f"{what}{path}", users.module(source), os.path.abspath(file), size if colon else None)


def names() -> list[str]:
    """The names of the pages and sweeps that come with the package, with a `/` those in folders."""
    found = []
    for path in pathlib.Path(FOLDER).rglob("*.py"):
        # Others are what several pages share.
        if any(f"\ndef {name}(" in path.read_text(encoding="utf-8") for name in ("get_config", "overrides")):
            found.append(path.relative_to(FOLDER).with_suffix("").as_posix())
    return sorted(found)
