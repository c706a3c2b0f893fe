"""Rules about the numbers of one section, which its dataclass checks when it is made."""

from typing import Any

from plm_jax.common.errors import UserError


def at_least(least: int, section: str, of: Any, *names: str) -> None:
    """Refuses fields below a number; `section` is where a config has what they are `of`."""
    for name in names:
        if (value := getattr(of, name)) < least:
            raise UserError(f"config.{section}.{name} is {value}: give at least {least}")


def share(section: str, of: Any, *names: str) -> None:
    """Refuses fields that are no share, from 0 to below 1."""
    for name in names:
        if not 0.0 <= (value := getattr(of, name)) < 1.0:
            raise UserError(f"config.{section}.{name} is {value}: give 0 to below 1")
