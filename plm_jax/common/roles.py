"""Roles of a config, each of which one of several choices plays: an optimizer, a layout, a position scheme, ….

    class Optimizer(Role):
        \"\"\"What turns gradients into updates.\"\"\"

    @dataclass(frozen=True)
    class AdamW(Optimizer):
        kind: ClassVar[str] = "adamw"

A role is an abstract base; a dataclass below it becomes a choice by naming its `kind`, wherever it is written: one of a
user's own enters as ours do. In a tree a choice is its fields and its `kind`.
"""

import dataclasses
from typing import Any, ClassVar, Self, get_origin

from plm_jax.common.errors import UserError


class Role:
    """The base of all roles.

    Attributes:
      kind: what a choice is called in a config.
      choices: of each role its choices by their kinds.
    """

    kind: ClassVar[str]
    choices: ClassVar[dict[str, type[Self]]]
    # For type checkers: every choice is a dataclass.
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, **arguments):
        super().__init_subclass__(**arguments)
        if is_role(cls):
            cls.choices = {}
        elif "kind" in vars(cls):
            other = cls.choices.get(cls.kind)
            if other and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise UserError(
                    f"{cls.__module__}.{cls.__qualname__} calls itself '{cls.kind}', as "
                    f"{other.__module__}.{other.__qualname__} does: give it another kind"
                )
            if missing := [name for name in _declared(cls) if not hasattr(cls, name)]:
                raise UserError(f"{cls.__module__}.{cls.__qualname__} says nothing of its {', '.join(missing)}: set it")
            cls.choices[cls.kind] = cls


def _declared(choice: type[Role]) -> list[str]:
    """What the role of a choice asks each of its choices to set, besides fields."""
    role = next(base for base in choice.__mro__ if is_role(base))
    return [
        name for name, annotation in vars(role).get("__annotations__", {}).items() if get_origin(annotation) is ClassVar
    ]


def is_role(annotation: object) -> bool:
    """Whether a type is a role, and not one of its choices."""
    return isinstance(annotation, type) and Role in annotation.__bases__
