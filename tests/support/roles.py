"""The choices of a role that the package has, without those that tests and users' pages have added."""

from plm_jax.common.roles import Role


def built_in(role: type[Role]) -> dict[str, type[Role]]:
    """By their kinds."""
    return {
        kind: choice
        for kind, choice in role.choices.items()
        if choice.__module__.startswith("plm_jax.") and not choice.__module__.startswith("plm_jax.common.users")
    }
