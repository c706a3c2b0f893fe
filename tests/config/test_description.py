import re

from plm_jax import config
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
    given = config.to_dict(config.LambConfig(b1=0.75))
    assert shown == {name: str(value) for name, value in given.items()}
    assert any(
        re.match(r"kind = lamb  # one of .*adafactor.*adamw.*lamb, sgd: AdamW's direction scaled", s) for s in section
    )
    assert any(
        s.startswith("clip_norm = 1.0  # number, 0 to 1e+12: the largest norm of all gradients together")
        for s in section
    )
    assert f"  cache_dir = {tiny}/cache  # text: what `prepare` writes and the trainer reads" in done.out


def test_a_field_of_each_form_is_told():
    told = list(description.lines(RUNS["everything"]))
    for line in (
        "    prng = threefry",
        "    phases:",
        "      0:",
        "        until = 0.5  # number",
        "        length = 16  # integer, 1 to 16,777,216 | None",
        "    mixture:",
        "      a = 2.0  # number",
        "    sources:",
        "        kind = jsonl  # one of jsonl",
        "    rules = (('layers', 'stage'),",
    ):
        start = line.removeprefix("  ") if not line.startswith("      ") else line[2:]
        assert any(found.startswith(start) for found in told), line


def test_the_help_of_a_verb_has_its_flags_and_how_to_list_a_config(verb):
    done = verb("plan", "--help")
    assert done.status == 0 and not done.err
    flags = re.findall(r"^  --(\S+?)=…  +(\S.*)$", done.out, re.MULTILINE)
    of_config, own = ["config", "config.FIELD", "module"], ["topology", "slices", "search", "price", "output"]
    assert [name for name, _ in flags] == of_config + own
    assert "python -m plm_jax config --config=" in dict(flags)["config.FIELD"]
    assert done.out.startswith("`python -m plm_jax plan ")
