"""The flags of verbs: a config with `--config.section.field=value`, `--module=FILE` of users' code, and of decoding."""

import dataclasses
from typing import Any

from absl import flags

from plm_jax.common import command_line, trees, users
from plm_jax.common.errors import UserError
from plm_jax.config import checks, overrides, reading
from plm_jax.config import files as pages
from plm_jax.config.description import documented
from plm_jax.config.run import Run
from plm_jax.generation.decoding_config import PUBLISHED, DecodingConfig


class ModulesFlag:
    """The flag `--module`, which may be given again; a verb that opens what users' code may have made defines it."""

    def __init__(self):
        told = "a Python file or module with classes of your own; may be given again"
        self._modules = flags.DEFINE_multi_string("module", [], told)

    def load(self) -> None:
        """Imports the modules, so that their classes are choices.

        Raises:
          UserError: there is no such module, or its code fails.
        """
        for given in self._modules.value:
            users.load(given)

    def arguments(self) -> list[str]:
        """The flag as it was given, for a process of another verb."""
        return [f"--module={given}" for given in self._modules.value]


class ConfigFlag:
    """The flags `--config` with its overrides and `--module`; a verb defines them once."""

    def __init__(self):
        self.modules = ModulesFlag()
        told = "a config file, such as configs/gpt2.py:small, or a name, such as gpt2:small"
        below = "another value of a field; `python -m plm_jax config --config=…` lists all of them"
        self._page = command_line.define_dotted("config", told, below)

    @property
    def is_given(self) -> bool:
        """Whether the command line has a config."""
        return self._page.value is not None

    def run(self, may_lack_model: bool = False, replaces_model: bool = False) -> Run:
        """The checked run; relative paths in its overrides count from the working directory.

        Args:
          may_lack_model: whether its model may be that of a checkpoint to come.
          replaces_model: whether `transfer.resolve` will replace the config's model with a checkpoint's, and check the
            result.

        Raises:
          UserError: there is no flag, no such page, or the page or an override is wrong.
        """
        if not self.is_given:
            raise UserError("--config is missing: give a config file, such as --config=configs/gpt2.py:small")
        self.modules.load()
        page, changes = pages.load(self._page.value), command_line.dotted(self._page)
        tree = overrides.apply(page.config().to_dict(), changes, Run)
        run = reading.resolve(tree, page.file, [path for path, _ in changes], replaces_model)
        if not may_lack_model and not replaces_model:
            checks.refuse_stand_in(run)
        return run

    def arguments(self) -> list[str]:
        """The flags as they were given, for a process of another verb."""
        changes = [f"--config.{path}={value}" for path, value in command_line.dotted(self._page)]
        return [f"--config={self._page.value}", *changes, *self.modules.arguments()]


class DecodingFlags:
    """Flags of verbs that write text: one per field of `DecodingConfig`, and `--decoding` for published settings."""

    def __init__(self):
        told = "a published way to decode, of which the flags below change fields"
        self._published = flags.DEFINE_enum("decoding", None, sorted(PUBLISHED), told)
        told = documented(DecodingConfig)
        names = [field.name for field in dataclasses.fields(DecodingConfig)]
        self._fields = {name: flags.DEFINE_multi_string(name, None, told[name]) for name in names}

    def options(self) -> dict[str, Any]:
        """The fields that the command line sets; all of them where it names a published decoding.

        Raises:
          UserError: a value that a field does not take.
        """
        changes = [(name, text) for name, flag in self._fields.items() for text in flag.value or ()]
        published = dataclasses.asdict(PUBLISHED[self._published.value]) if self._published.value else {}
        given = published | overrides.apply({}, changes, DecodingConfig, "decoding")
        checked = trees.parse(DecodingConfig, given, "decoding")
        return {name: getattr(checked, name) for name in given}
