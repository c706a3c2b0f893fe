"""Tasks of GPT-3's evaluation from TensorFlow Datasets, as prompts; name one after the colon: piqa, arc_easy, boolq, ….

    python -m plm_jax evaluate --checkpoint=SRC --config=configs/tasks/gpt3.py:piqa --shots=0,5 --normalize=token

The prompts follow the tasks of lm-eval 0.4.13. They were not compared with the paper's appendix G (Brown et al. 2020);
results with different prompts are not comparable. For ARC and OpenBookQA, the probability of an answer is divided by
its probability after "Answer:" alone (`--normalize=unconditional`).

Not included: tasks that a template cannot express (LAMBADA, Winograd, Winogrande, COPA, ReCoRD, RACE, CoQA, QuAC,
DROP), and StoryCloze, which only its authors distribute.
"""

from plm_jax import config, models, objectives

_ANSWER = "Question: {question}\nAnswer:"


def _anli(number: int) -> config.Tfds:
    question = "{context}\nQuestion: {hypothesis} True, False, or Neither?\nAnswer:"
    prompt = config.PromptConfig(question, choices=("True", "Neither", "False"), answer="{label}")
    return config.Tfds(f"anli/r{number}", prompt=prompt)


def _arc(name: str) -> config.Tfds:
    prompt = config.PromptConfig(_ANSWER, choices=("{choices[text]}",), answer="{answerKey}", condition="Answer:")
    return config.Tfds(f"ai2_arc/{name}", prompt=prompt)


def _super_glue(name: str, question: str, *choices: str) -> config.Tfds:
    return config.Tfds(f"super_glue/{name}", prompt=config.PromptConfig(question, choices, answer="{label}"))


def _to_english(data: str, code: str, language: str) -> config.Tfds:
    prompt = config.PromptConfig(f"{language} phrase: {{{code}}}\nEnglish phrase:", answer="{en}")
    return config.Tfds(f"{data}/{code}-en", prompt=prompt)


SETS = {
    "piqa": config.Tfds(
        "piqa",
        prompt=config.PromptConfig("Question: {goal}\nAnswer:", choices=("{sol1}", "{sol2}"), answer="{label}"),
    ),
    "hellaswag": config.Tfds(
        "hellaswag",
        prompt=config.PromptConfig("{activity_label}: {context}", choices=("{endings}",), answer="{label}"),
    ),
    "openbookqa": config.Tfds(
        "openbookqa",
        prompt=config.PromptConfig(
            "{question[stem]}",
            choices=tuple(f"{{question[choice_{letter}]}}" for letter in "ABCD"),
            answer="{answerKey}",
            condition="Answer:",
        ),
    ),
    "arc_easy": _arc("ARC-Easy"),
    "arc_challenge": _arc("ARC-Challenge"),
    "trivia_qa": config.Tfds("trivia_qa/rc.nocontext", prompt=config.PromptConfig(_ANSWER, answer="{answer[aliases]}")),
    "natural_questions": config.Tfds(
        "natural_questions_open",
        prompt=config.PromptConfig(
            "Q: {question}?\nA:", answer="{answer}", separator="\n", introduction="Answer these questions:\n"
        ),
    ),
    "web_questions": config.Tfds(
        "web_questions", prompt=config.PromptConfig(_ANSWER, answer="{answers}"), validation="test"
    ),
    "boolq": _super_glue("boolq", "{passage}\nQuestion: {question}?\nAnswer:", "no", "yes"),
    "cb": _super_glue(
        "cb", "{premise}\nQuestion: {hypothesis}. True, False, or Neither?\nAnswer:", "True", "False", "Neither"
    ),
    "rte": _super_glue("rte", "{premise}\nQuestion: {hypothesis} True or False?\nAnswer:", "True", "False"),
    "wic": _super_glue(
        "wic",
        "Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: Is the word '{word}' used in the same way in the "
        "two sentences above?\nAnswer:",
        "no",
        "yes",
    ),
    "anli_r1": _anli(1),
    "anli_r2": _anli(2),
    "anli_r3": _anli(3),
    "squad_v2": config.LabeledTfds(
        "squad/v2.0", config.AnswerForm(), prompt=config.PromptConfig("{context}\nQuestion: {question}\nAnswer:")
    ),
    "wmt14_fr_en": _to_english("wmt14_translate", "fr", "French"),
    "wmt16_de_en": _to_english("wmt16_translate", "de", "German"),
    "wmt16_ro_en": _to_english("wmt16_translate", "ro", "Romanian"),
}


def get_config(name: str = "piqa"):
    """Returns a run with one of SETS, which is only evaluated."""
    run = config.Run(
        model=models.FromCheckpointConfig(),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(),
        data=config.DataConfig(
            cache_dir="../../.cache/tasks/gpt3", length=2048, sources={name: config.choose(SETS, name)}
        ),
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-4),
        train=config.TrainConfig(steps=1, batch_size=32),
    )
    return config.to_config_dict(run)
