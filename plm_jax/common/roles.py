"""Base of config sections that have several implementations, such as optimizers, layouts and position schemes.

    class Optimizer(Role):
        \"\"\"Settings of an optimizer.\"\"\"

    @dataclass(frozen=True)
    class AdamW(Optimizer):
        kind: ClassVar[str] = "adamw"

A role is an abstract base class. A dataclass that inherits from a role and sets `kind` becomes a choice of the role, in
this package and in users' code alike. In a tree, a choice is represented by its fields and its `kind`.
"""

import dataclasses
from typing import Any, ClassVar, Self, get_origin

from plm_jax.common.errors import UserError


class Role:
    """Base class of all roles.

    The definition of a choice raises a `UserError` if another choice of the role has the same kind, or if the class
    does not define a variable that the role declares.

    Attributes:
      kind: name of a choice in a config.
      choices: choices of a role by kind.
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
                    f"{cls.__module__}.{cls.__qualname__} has kind '{cls.kind}', and so does "
                    f"{other.__module__}.{other.__qualname__}: use another kind"
                )
            if missing := [name for name in _declared(cls) if not hasattr(cls, name)]:
                raise UserError(f"{cls.__module__}.{cls.__qualname__} does not define {', '.join(missing)}: define it")
            cls.choices[cls.kind] = cls


def _declared(choice: type[Role]) -> list[str]:
    """Returns the names of the class variables that the role of a choice declares."""
    role = next(base for base in choice.__mro__ if is_role(base))
    return [
        name for name, annotation in vars(role).get("__annotations__", {}).items() if get_origin(annotation) is ClassVar
    ]


def is_role(annotation: object) -> bool:
    """Whether a type is a role itself: a class that inherits directly from `Role`."""
    return isinstance(annotation, type) and Role in annotation.__bases__
