"""`python -m plm_jax config --config=PAGE:SIZE [--config.FIELD=VALUE …]`: the resolved config, with types and docs.

Every line is a field that `--config.SECTION.FIELD=VALUE` changes; `--config.SECTION.kind=KIND` takes another choice.
"""

from plm_jax.common import command_line
from plm_jax.config import description
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()


def main() -> None:
    """Prints the config, a field a line."""
    print("\n".join(description.lines(_CONFIG.run(may_lack_model=True))))


if __name__ == "__main__":
    command_line.run(main)
