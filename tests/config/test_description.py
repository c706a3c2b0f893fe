import re

import pytest

from plm_jax import config
from plm_jax.__main__ import commands
from plm_jax.config import description
from tests.support.tiny import RUNS


def test_the_verb_lists_every_field_of_the_resolved_config(tiny, verb):
    done = verb("config", f"--config={tiny}/tiny.py", "--config.optimizer.kind=lamb", "--config.optimizer.b1=0.75")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    (optimizer,) = [i for i, line in enumerate(lines) if line == "optimizer:"]
    section = []
    for line in lines[optimizer + 1 :]:
        if not line.startswith("  "):
            break
        section.append(line.strip())
    shown = dict(line.split("  # ")[0].split(" = ") for line in section)
    expected = config.to_dict(config.LambConfig(b1=0.75)) | {"groups": ()}
    assert shown == {name: str(value) for name, value in expected.items()}
    assert "    kind = normal  # one of fan_in, normal, torch_linear: Normal initialization" in done.out.splitlines()
    assert "  spec = bytes  # text: " in done.out and "  init_from = ''  # text: " in done.out
    assert not re.search(r"= *  #", done.out), "a value is blank"
    summary = config.LambConfig.__doc__.partition(".\n")[0]
    assert any(
        re.match(rf"kind = lamb  # one of .*adafactor.*adamw.*lamb, .*sgd, .*: {re.escape(summary)}$", s)
        for s in section
    )
    assert any(
        s.startswith("clip_norm = 1.0  # number, 0 to 1,000,000,000,000: maximum global norm of the gradients")
        for s in section
    )
    assert f"  cache_dir = {tiny}/cache  # text: folder of the cache that `prepare` writes" in done.out


def test_fields_of_every_type_are_described():
    lines = list(description.lines(RUNS["everything"]))
    for line in (
        "    prng = threefry",
        "    phases:",
        "      0:",
        "        until = 0.5  # number",
        "        length = 16  # integer, 1 to 16,777,216 | None",
        "    mixture:",
        "      a = 2.0  # number",
        "    sources:",
        "        kind = table  # one of",
        "    rules = (('layers', 'stage'),",
    ):
        start = line.removeprefix("  ") if not line.startswith("      ") else line[2:]
        assert any(found.startswith(start) for found in lines), line


@pytest.mark.parametrize("name", commands())
def test_help_has_a_summary_a_usage_line_an_example_and_every_required_flag(name, verb):
    done = verb(name, "--help")
    assert done.status == 0 and not done.err
    summary, _, usage = done.out.splitlines()[:3]
    assert summary == f"{commands()[name]}." and usage.startswith(f"usage: plm_jax {name} ")
    assert re.search(rf"^examples?:\n  plm_jax {name} ", done.out, re.MULTILINE)
    usages = done.out.split("\n\n")[1].splitlines()
    required = set.intersection(*(set(re.findall(r"--(\w+)=", re.sub(r"\[.*?\]", "", usage))) for usage in usages))
    flags = re.findall(r"^  --([\w.]+)(.*(?:\n {28}.*)*)", done.out.partition("\nflags:\n")[2], re.MULTILINE)
    marked = [flag for flag, text in flags if "(required)" in text]
    assert set(marked) == required
    assert all(re.search(r"[=} ] *\n? +[a-zA-Z]", text) for _, text in flags)
    assert "'" not in "".join(re.findall(r"\(default: .*?\)", done.out))


def test_help_lists_the_flags_of_a_config(verb):
    done = verb("plan", "--help")
    flags = re.findall(r"^  --([\w.]+)", done.out, re.MULTILINE)
    assert flags == ["config", "config.FIELD", "topology", "slices", "search", "price", "output", "module"]
    assert "plm_jax config --config=CONFIG lists all fields" in done.out
    assert re.search(r"--search +try .*\(default: false\)", done.out)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("Sign of the gradient.", "Sign of the gradient"),
        ("Sign of the\n  gradient. `rate` scales it.", "Sign of the gradient"),
        ("Published by Bernstein et al. 2018. More.", "Published by Bernstein et al. 2018"),
        ("Sign of the gradient\n\nThe rate scales it.", "Sign of the gradient"),
        ("\n    Sign of the gradient\n    \n    Source: Bernstein et al. 2018.\n", "Sign of the gradient"),
    ],
)
def test_description_is_the_first_sentence_of_the_first_paragraph(text, expected):
    assert description.sentence(text) == expected


def test_field_description_ends_before_the_next_paragraph():
    class Signs:
        """Sign of the gradient

        Attributes:
          rate: factor of
            the sign

        Source: Bernstein et al. 2018.
        """

    assert description.field_descriptions(Signs) == {"rate": "factor of the sign"}
