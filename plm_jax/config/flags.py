"""Flags of commands: `--config` with overrides of its fields, `--module` for users' code, and decoding settings."""

import dataclasses
from typing import Any

from absl import flags

from plm_jax.common import command_line, overrides, trees, users
from plm_jax.common.errors import UserError
from plm_jax.config import checks, reading
from plm_jax.config import files as config_files
from plm_jax.config.description import field_descriptions
from plm_jax.config.run import Run
from plm_jax.generation.decoding_config import PUBLISHED, DecodingConfig


class ModulesFlag:
    """Flag `--module`, which names Python files or modules with the user's own classes."""

    def __init__(self):
        self._modules = flags.DEFINE_multi_string(
            "module", [], "Python file or module with your own classes; may be repeated"
        )

    def load(self) -> None:
        """Imports the modules, which registers their classes.

        Raises:
          UserError: there is no such module, or its code fails.
        """
        for name in self._modules.value:
            users.load(name)

    def arguments(self) -> list[str]:
        """Returns the flag as arguments for another process."""
        return [f"--module={name}" for name in self._modules.value]


class ConfigFlag:
    """Flags `--config`, with overrides of its fields, and `--module`."""

    def __init__(
        self, help: str = "config file such as configs/gpt2.py:small, or a name such as gpt2:small (required)"
    ):
        fields_help = "override a field; plm_jax config --config=CONFIG lists all fields"
        self._config = command_line.define_dotted("config", help, fields_help)
        self.modules = ModulesFlag()

    @property
    def is_given(self) -> bool:
        """Whether the command line has a config."""
        return self._config.value is not None

    @property
    def changes(self) -> list[tuple[str, str]]:
        """Overrides of fields, as pairs such as `("train.steps", "100")`."""
        return command_line.dotted(self._config)

    def optional_run(self, may_lack_model: bool = False) -> Run | None:
        """Returns the result of `run`, or None if the command line has no config.

        Raises:
          UserError: flags override fields of a config, but there is no config; or `run` raises this error.
        """
        if not self.is_given and (changes := self.changes):
            raise UserError(
                f"--config.{changes[0][0]} overrides a field of a config, but --config is missing: pass both"
            )
        return self.run(may_lack_model) if self.is_given else None

    def run(self, may_lack_model: bool = False, replaces_model: bool = False, default: str | None = None) -> Run:
        """Loads the modules of `--module` and returns the run of the config with the overrides.

        Relative paths in overrides are relative to the working directory.

        Args:
          may_lack_model: whether the model of the config may be a placeholder for the model of a checkpoint.
          replaces_model: whether `transfer.resolve` will replace the config's model with a checkpoint's, and check the
            result. The sections of the run are then not checked against each other.
          default: config that is read if the flag is missing; overrides apply to it.

        Raises:
          UserError: the flag is missing, there is no such config file or module, or the file or an override is wrong.
        """
        config_file = self._config.value or default
        if config_file is None:
            raise UserError("--config is missing: pass a config file, such as --config=configs/gpt2.py:small")
        self.modules.load()
        file, changes = config_files.load(config_file), self.changes
        tree = overrides.apply(file.config().to_dict(), changes, Run)
        run = reading.resolve(tree, file.file, [path for path, _ in changes], replaces_model)
        if not may_lack_model and not replaces_model:
            checks.refuse_stand_in(run)
        return run

    def arguments(self, default: str | None = None) -> list[str]:
        """Returns the flags as arguments for another process; `default` is the config if `--config` is missing."""
        changes = [f"--config.{path}={value}" for path, value in self.changes]
        return [f"--config={self._config.value or default}", *changes, *self.modules.arguments()]


class DecodingFlags:
    """Flags of decoding: one per field of `DecodingConfig`, and `--decoding` for published settings."""

    def __init__(self):
        help = "published decoding settings; the flags below override individual settings"
        self._published = flags.DEFINE_enum("decoding", None, sorted(PUBLISHED), help)
        descriptions = field_descriptions(DecodingConfig)
        names = [field.name for field in dataclasses.fields(DecodingConfig)]
        self._fields = {name: flags.DEFINE_multi_string(name, None, descriptions[name]) for name in names}

    def options(self) -> dict[str, Any]:
        """Returns the settings that the command line sets, by name; all settings if it has `--decoding`.

        Raises:
          UserError: a setting has an invalid value.
        """
        changes = [(name, text) for name, flag in self._fields.items() for text in flag.value or ()]
        published = dataclasses.asdict(PUBLISHED[self._published.value]) if self._published.value else {}
        settings = published | overrides.apply({}, changes, DecodingConfig, "decoding")
        checked = trees.parse(DecodingConfig, settings, "decoding")
        return {name: getattr(checked, name) for name in settings}
