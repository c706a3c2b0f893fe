"""Choices of a role in the package, without those of tests and users' files."""

from plm_jax.common.roles import Role


def built_in(role: type[Role]) -> dict[str, type[Role]]:
    """Returns the choices of the package by kind."""
    return {
        kind: choice
        for kind, choice in role.choices.items()
        if choice.__module__.startswith("plm_jax.") and not choice.__module__.startswith("plm_jax.common.users")
    }
