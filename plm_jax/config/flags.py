"""The flags of verbs that take a config: `--config=PAGE:SIZE` and `--config.section.field=value`."""

from plm_jax.common import command_line
from plm_jax.common.errors import UserError
from plm_jax.config import overrides, pages, reading
from plm_jax.config.run import Run


class ConfigFlag:
    """The flag `--config` and its overrides; a verb defines it once."""

    def __init__(self):
        told = "a config file, such as configs/gpt2.py:small, or a name, such as gpt2:small"
        below = "another value of a field; `python -m plm_jax.config --config=…` lists all of them"
        self._page = command_line.define_dotted("config", told, below)

    @property
    def is_given(self) -> bool:
        """Whether the command line has a config."""
        return self._page.value is not None

    def run(self) -> Run:
        """The checked run; relative paths in its overrides count from the working directory.

        Raises:
          UserError: there is no flag, no such page, or the page or an override is wrong.
        """
        if not self.is_given:
            raise UserError("--config is missing: give a config file, such as --config=configs/gpt2.py:small")
        page, changes = pages.load(self._page.value), command_line.dotted(self._page)
        tree = overrides.apply(page.config().to_dict(), changes, Run)
        return reading.resolve(tree, page.file, [path for path, _ in changes])

    def arguments(self) -> list[str]:
        """The flag as it was given, for a process of another verb."""
        return [f"--config={self._page.value}", *(f"--config.{p}={v}" for p, v in command_line.dotted(self._page))]
