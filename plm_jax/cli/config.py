"""Print the resolved config, with the type and the description of every field.

usage: plm_jax config --config=CONFIG [--config.FIELD=VALUE ...]

Every command that has the flag --config accepts overrides of the printed fields. --config.SECTION.kind=KIND selects
another variant of a section.

example:
  plm_jax config --config=demo:bert --config.optimizer.kind=lamb
"""

from plm_jax.common import command_line
from plm_jax.config import description
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()


def main() -> None:
    """Prints the config, one field per line."""
    print("\n".join(description.lines(_CONFIG.run(may_lack_model=True))))


if __name__ == "__main__":
    command_line.run(main)
