"""Prompt formats of sources, for `evaluate --shots`."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common.errors import UserError
from plm_jax.data.sources import templates


@dataclass(frozen=True)
class PromptConfig:
    """Format of few-shot prompts: an introduction, examples with answers, and the question of a row.

    In a template, `{name}` stands for a field of the row, as in `{question}` or `{choices[0]}`. If the source's form
    has tags, `{text}` stands for the words joined by spaces. In `choices`, a template that is only a field with a list
    of texts stands for all texts of the list.

    Attributes:
      question: template of the text before the answer.
      choices: templates of the answers that the model chooses from, in the order of the form's labels; if empty, the
        model chooses from the labels of the form or the choices of the row. If the source has neither labels nor
        choices, the model generates its answer.
      answer: template of the correct answer. With choices, the answer is the text of a choice or the index of a choice
        from 0. Without choices, the answer is a text, or a field with a list of all accepted texts. If the template is
        empty, the answer is the label of the form or the targets of the source.
      delimiter: text between question and answer. The score of an answer includes the delimiter, but the length of the
        answer does not.
      separator: text after each example and after the introduction.
      introduction: text at the beginning of the prompt.
      condition: text that replaces the question when `--normalize=unconditional` scores a choice without the question.
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

    @property
    def fields(self) -> set[str]:
        """Names of the fields of a row that the templates use; without `answer`, also `label`."""
        written = (self.question, *self.choices, self.answer or "{label}")
        return set().union(*map(templates.fields, written))
