"""Prompt formats of sources, for `evaluate --shots`."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common.errors import UserError


@dataclass(frozen=True)
class PromptConfig:
    """Prompt of a row: a question and an answer, after an optional introduction and examples of both.

    In a template `{name}` stands for a field of the row, as in `{question}` or `{choices[0]}`. If the source's form has
    tags, `{text}` is the words joined by spaces. A template that is only a field with a list of texts stands for every
    text of the list.

    Attributes:
      question: template of the text before the answer.
      choices: templates of the answers that a model chooses from, in the order of the form's labels; if empty, the
        labels or the row's choices; if there are none, the model generates its answer.
      answer: template of the correct answer: a choice, its index from 0, or every accepted generated answer; if empty,
        the label of the form or the source's targets.
      delimiter: text between question and answer; scored as part of the answer, but not counted in its length.
      separator: text after each example and after the introduction.
      introduction: text at the beginning of the prompt.
      condition: text before an answer that is scored without its question, for `--normalize=unconditional`.
    """

    kind: ClassVar[str] = "prompt"
    question: str
    choices: tuple[str, ...] = ()
    answer: str = ""
    delimiter: str = " "
    separator: str = "\n\n"
    introduction: str = ""
    condition: str = ""

    def __post_init__(self):
        if not self.question:
            raise UserError(
                "a source has an empty prompt.question: set a template, as in 'Review: {text}\\nSentiment:'"
            )
        if len(set(self.choices)) < len(self.choices):
            raise UserError(f"a source has prompt.choices {', '.join(self.choices)}: remove the duplicates")
