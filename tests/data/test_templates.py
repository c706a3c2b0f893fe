"""Texts of templates are about as long as the fields of their rows."""

import pytest

from plm_jax.data.sources import templates
from plm_jax.data.sources.corpus import BadRow

ROW = {"text": "sea", "number": 2.5, "width": 10**9}


@pytest.mark.parametrize(
    "template", ["{text:40000000000}", "{text:>1000}", "{number:.99999f}", "{text:{width}}", "{number:0999999999}"]
)
def test_a_template_that_pads_to_any_width_is_refused(template):
    with pytest.raises(BadRow, match=r"x:1 does not fit the source's inputs: .* a number above 999"):
        templates.render(template, "x:1", ROW, "inputs")


def test_a_template_formats_as_python_does():
    for template in ("{text:>9}|{number:.3f}", "{number:8.2e}", "{text:<100}."):
        assert templates.render(template, "x:1", ROW, "inputs") == template.format(**ROW)
