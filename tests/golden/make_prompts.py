"""Writes tests/golden/prompts: of every prompt of `configs/tasks` one row behind another, and its choices.

    python -m tests.golden.make_prompts

Rows that come with the package are its first two; the others are those of tests/support/prompt_rows.py.
"""

import itertools
import pathlib

from plm_jax import config
from plm_jax.config import files as pages
from plm_jax.configs.tasks import glue, gpt3
from plm_jax.data.sources import rows, tables
from plm_jax.evaluation import prompts
from tests.support import prompt_rows

FOLDER = pathlib.Path(__file__).with_name("prompts")


def names() -> list[str]:
    """The pages of `configs/tasks` with their tasks, by their names."""
    plain = [page.removeprefix("tasks/") for page in pages.names() if page.startswith("tasks/")]
    several = {"glue": glue.TASKS, "gpt3": gpt3.SETS}
    return [name for page in plain for name in ([f"{page}:{task}" for task in several.get(page, ())] or [page])]


def text(name: str) -> str:
    """A prompt with one example, and what may answer it."""
    page = pages.load(f"tasks/{name}")
    ((own, source),) = config.resolve(page.config().to_dict(), page.file).data.sources.items()
    if name in prompt_rows.ROWS:
        found = [rows.SourceRow(f"{name}:{i}", row) for i, row in enumerate(prompt_rows.ROWS[name])]
    else:
        found = [rows.SourceRow(*row) for row in itertools.islice(tables.read_rows(source.path), 2)]
    shot, asked = map(prompts.example_builder(own, source), found)
    told = [prompts.build_context(source.prompt, [shot], asked.question)]
    wrong = [choice for choice in asked.choices if choice not in asked.answers]
    told += [f"<{source.prompt.delimiter}{answer}>" for answer in (*asked.answers, *wrong)]
    return "\n".join(told) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in names():
        (FOLDER / f"{name.replace(':', '-')}.txt").write_text(text(name), encoding="utf-8")
