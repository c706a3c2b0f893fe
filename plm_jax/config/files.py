"""Config files: Python files with a function `get_config`, by path (`configs/bert.py:base`) or name (`bert:base`).

Names refer to the config files in `plm_jax.configs`. Relative paths in a config file are relative to its folder. If the
file is referred to by a name such as `tasks/sentiment`, they are relative to `./configs/tasks`. An unchanged config
file is the same module whether it is loaded by path, by name or by an import. A class in it thus exists once.
"""

import os
import pathlib
from dataclasses import dataclass
from types import ModuleType

import ml_collections

from plm_jax.common import package, users
from plm_jax.common.errors import UserError, nearest, one_line, users_code

FOLDER = os.path.join(package.FOLDER, "configs")
_HINT = "pass a config file, such as configs/gpt2.py:small, or a name, such as gpt2:small"
_SWEEP_HINT = "pass a sweep file, such as configs/rates.py, or a name, such as ablations/positions:demo"


@dataclass(frozen=True)
class ConfigFile:
    """Config file with the selected size.

    Attributes:
      argument: flag and path or name that the user passed, without the size, such as `--config=gpt2`; for error
        messages.
      module: the imported file.
      file: absolute path of the config file. Relative paths in the config are relative to its folder. If the user
        passed a name, this is the path below `./configs`, which need not exist.
      size: argument of `get_config`; None for its default.
    """

    argument: str
    module: ModuleType
    file: str
    size: str | None

    @property
    def code(self) -> str:
        """Path of the Python file that was imported."""
        return self.module.__file__ or ""

    def config(self) -> ml_collections.ConfigDict:
        """Returns the result of `get_config`, unchecked and with relative paths.

        Raises:
          UserError: the file has no `get_config`, or `get_config` fails or does not return a ConfigDict.
        """
        if not hasattr(self.module, "get_config"):
            raise UserError(f"{self.argument} has no function get_config, so it is not a config file")
        try:
            with users_code(self.code):
                tree = self.module.get_config(*() if self.size is None else (self.size,))
        except TypeError as error:  # Wrong arguments; errors within `get_config` were converted.
            raise UserError(f"{self.argument}: {one_line(error)}") from error
        if not isinstance(tree, ml_collections.ConfigDict):
            raise UserError(f"{self.argument}: get_config returns no ConfigDict; {_HINT}")
        return tree


def load(
    argument: str, what: str = "--config=", beside: ConfigFile | None = None, is_sweep: bool = False
) -> ConfigFile:
    """Loads the config file that `FILE.py`, `FILE.py:SIZE`, `NAME` or `NAME:SIZE` refers to.

    Args:
      argument: path, which ends in `.py`, or name of the config file, and optionally its size.
      what: prefix of `argument` in error messages.
      beside: if `argument` is a relative path, it is relative to the folder of this config file; None: to the working
        directory.
      is_sweep: whether a sweep file is expected, for error messages.

    Raises:
      UserError: there is no such file, or its code fails.
    """
    path, colon, size = argument.partition(":")
    if path.endswith(".py"):
        folders = (os.path.dirname(beside.code), os.path.dirname(beside.file)) if beside else ("", "")
        source, file = (os.path.join(folder, path) for folder in folders)
        if not os.path.isfile(source):
            raise UserError(f"{what}{path}: there is no such file; {_SWEEP_HINT if is_sweep else _HINT}")
    else:
        source, file = os.path.join(FOLDER, f"{path}.py"), os.path.join("configs", f"{path}.py")
        if not os.path.isfile(source):
            kind, known = ("sweep", names("overrides")) if is_sweep else ("config", names())
            raise UserError(f"{what}{path}: no {kind} has that name (a file ends in .py); {nearest(path, known)}")
    return ConfigFile(f"{what}{path}", users.module(source), os.path.abspath(file), size if colon else None)


def names(*functions: str) -> list[str]:
    """Returns the names of the config files and sweeps in the package, sorted.

    Args:
      functions: names of functions. A file is listed if it defines at least one of them. By default, `get_config`
        (configs) and `overrides` (sweeps).
    """
    names = []
    for path in pathlib.Path(FOLDER).rglob("*.py"):
        # Other files are shared by several configs.
        text = path.read_text(encoding="utf-8")
        if any(f"\ndef {name}(" in text for name in functions or ("get_config", "overrides")):
            names.append(path.relative_to(FOLDER).with_suffix("").as_posix())
    return sorted(names)
