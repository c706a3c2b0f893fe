"""How rows of a source are put to a model as text, for `evaluate --shots`."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common.errors import UserError


@dataclass(frozen=True)
class PromptConfig:
    """A row as a question and an answer; examples are both, and before them all may stand an introduction.

    In a template `{name}` stands for a field of the row, as in `{question}` or `{choices[0]}`; where a source's form
    has tags, `{text}` is the words. A field that is a list of texts, alone in a template, stands for all of them.

    Attributes:
      question: template of what comes before the answer.
      choices: templates of the answers among which a model chooses, in the order of the form's labels; empty: those
        labels, or a row's choices; where there are none, it writes its answer.
      answer: template of the right answer, a choice or its number from 0, or of written ones all that are right; empty:
        what the form says, or the source's targets.
      delimiter: between question and answer; it counts as part of the answer, and not of its length.
      separator: behind each example, and behind the introduction.
      introduction: before all.
      condition: what stands before an answer that is judged by itself, in `--normalise=unconditional`.
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
                "a source has an empty prompt.question: give a template, as in 'Review: {text}\\nSentiment:'"
            )
        if len(set(self.choices)) < len(self.choices):
            raise UserError(f"a source has prompt.choices {', '.join(self.choices)}: give none twice")
