import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role


class Shape(Role):
    """A role."""


@dataclass(frozen=True)
class Circle(Shape):
    kind: ClassVar[str] = "circle"
    radius: float = 1.0


@dataclass(frozen=True)
class Wheel(Circle):
    kind: ClassVar[str] = "wheel"
    spokes: int = 8


@dataclass(frozen=True)
class Drawing:
    first: Shape
    second: Shape = Circle()


def test_a_field_of_a_role_takes_every_choice_that_exists_when_it_is_read():
    @dataclass(frozen=True)
    class Square(Shape):
        kind: ClassVar[str] = "square"
        side: float = 1.0

    drawing = Drawing(Square(2.0), Wheel(spokes=3))
    assert trees.parse(Drawing, json.loads(json.dumps(trees.to_dict(drawing))), "drawing") == drawing
    assert trees.parse(Drawing, trees.to_config_dict(drawing).to_dict(), "drawing") == drawing


def test_a_choice_sets_what_its_role_declares():
    class Body(Role):
        """A role."""

        sides: ClassVar[int]
        name: ClassVar[str] = "body"

    class Solid(Body):
        """No choice yet."""

    class Cube(Solid):
        kind: ClassVar[str] = "cube"
        sides: ClassVar[int] = 6

    with pytest.raises(UserError, match="Ball does not define sides"):

        class Ball(Solid):
            kind: ClassVar[str] = "ball"

    assert Body.choices == {"cube": Cube}


def test_an_unknown_kind_names_the_field_and_the_nearest_one():
    with pytest.raises(UserError, match=r"drawing\.first\.kind is 'weel': .*wheel"):
        trees.parse(Drawing, {"first": {"kind": "weel"}}, "drawing")
    with pytest.raises(UserError, match=r"no field drawing\.first\.spokes"):
        trees.parse(Drawing, {"first": {"kind": "circle", "spokes": 3}}, "drawing")


def test_duplicate_kinds_are_rejected_but_reloading_a_config_file_is_not():
    with pytest.raises(UserError, match=r"Other has kind 'circle', and so does tests\.common\.test_roles\.Circle"):

        class Other(Shape):
            kind: ClassVar[str] = "circle"

    for _ in range(2):

        class Triangle(Shape):
            kind: ClassVar[str] = "triangle"

    assert Shape.choices["triangle"] is Triangle
