"""Invented rows in TFDS's format, with all its fields, and the expected examples of the suite, by task."""

_PAIR = {"sentence1": "It rained all day.", "sentence2": "The day was wet."}
_PAIR_TEXT = "sentence1: It rained all day. sentence2: The day was wet."
_NLI = {"premise": "A dog runs: fast.", "hypothesis": "An  animal moves."}
_NLI_TEXT = "hypothesis: An  animal moves. premise: A dog runs: fast."


def _texts(inputs, targets, **rest):
    return [{"inputs": inputs, "targets": targets, **rest}]


def _labels(fields, inputs, *targets):
    """Returns a row for each label, ending with -1 as in the test sets."""
    labels = [*range(len(targets)), -1]
    return [
        ({**fields, "label": label, "idx": 3}, _texts(inputs, target))
        for label, target in zip(labels, [*targets, "<unk>"], strict=True)
    ]


def _multirc(label, target):
    row = {
        "paragraph": "<b>Sent 1: </b>Ann left.<br><b>Sent 2: </b>Bob<br/> stayed.<br>",
        "question": "Who <b>left</b>?",
        "answer": "Bob",
        "idx": {"paragraph": 4, "question": 20, "answer": 7},
        "label": label,
    }
    inputs = "multirc question: Who left? answer: Bob paragraph: Sent 1: Ann left. Sent 2: Bob<br/> stayed. "
    return row, _texts(inputs, target, **{"idx/paragraph": 4, "idx/question": 20, "idx/answer": 7})


def _record(answers, targets):
    row = {
        "passage": 'Ann said "no."\n@highlight\nBob agreed\n@highlight\nEve (late) came!\n@highlight\nThey left',
        "query": "@placeholder was the last",
        "entities": ["Ann", "Bob", "Eve"],
        "answers": answers,
        "idx": {"passage": 5, "query": 9},
    }
    inputs = (
        "record query: @placeholder was the last entities: Ann, Bob, Eve passage: "
        'Ann said "no." Bob agreed. Eve (late) came! They left'
    )
    rest = {"answers": answers, "idx/passage": 5, "idx/query": 9}
    return row, [example for target in targets for example in _texts(inputs, target, **rest)]


def _wsc(text, noun, pronoun, position, label, inputs):
    row = {"text": text, "span1_text": noun, "span1_index": 0, "span2_text": pronoun, "span2_index": position}
    return {**row, "label": label, "idx": 8}, _texts(inputs, noun, referent=noun, label=label)


_WSC = [
    _wsc("Ann thanked Eve since she had helped .", "Eve", "she", 4, 1, "wsc: Ann thanked Eve since *she* had helped ."),
    _wsc("Ann thanked Eve since she had helped .", "Ann", "she", 4, 0, "wsc: Ann thanked Eve since *she* had helped ."),
    _wsc("The  X rule: Max broke it . ", "The  X rule", "it", 6, 1, "wsc: The  *it* rule: Max broke *it* . "),
    _wsc("Bob hid the cup and lost it", "the cup", "it", 6, 1, "wsc: Bob hid the cup and lost *it* "),
    _wsc(
        "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite loud. "
        '"Good for him," he said. ',
        "the pony",
        "him",
        22,
        0,
        "wsc: The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite "
        'loud. "Good for *him* ," he said.',
    ),
    _wsc(
        "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
        "safe . Some day they might want to use it , but really for now, what more could they wish for?",
        "the magic pebble",
        "it",
        30,
        1,
        "wsc: When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an "
        "iron safe . Some day they might want to use *it* , but really for now, what more could they wish for?",
    ),
]


def _wnli(premise, hypothesis, label, marked, noun):
    row = {"sentence1": premise, "sentence2": hypothesis, "label": label, "idx": 2}
    return row, _texts(f"wsc: {marked}", noun, referent=noun, label=label)


def _dpr(sentence, pronoun, label, inputs):
    row = {"sentence": sentence, "pronoun": pronoun, "candidates": ["Ann", "Eve's aunt"], "label": label}
    return row, _texts(inputs, row["candidates"][label])


_SQUAD = {
    "id": "a1",
    "title": "Rivers",
    "context": "The Po\u00a0(652 km) is Italy's longest;\n it\tflows east — past Turin…",
    "question": " Which is  Italy's longest-known river?",
    "answers": {"text": ["the Po", "Po (652 km)"], "answer_start": [0, 4]},
}
_ANSWERS = ["the Po", "Po ( 652 km ) "]


def _wmt(language, name, text):
    row = {"en": "The house: it is  small.", language: text}
    return [(row, _texts(f"translate English to {name}: The house: it is  small.", text))]


ROWS = {
    "glue_cola": _labels(
        {"sentence": "Them runs, they."}, "cola sentence: Them runs, they.", "unacceptable", "acceptable"
    ),
    "glue_sst2": _labels({"sentence": "a joy "}, "sst2 sentence: a joy ", "negative", "positive"),
    "glue_mrpc": _labels(_PAIR, f"mrpc {_PAIR_TEXT}", "not_equivalent", "equivalent"),
    "glue_qqp": _labels(
        {"question1": "Why?", "question2": "How — why?"},
        "qqp question1: Why? question2: How — why?",
        "not_duplicate",
        "duplicate",
    ),
    "glue_stsb": [
        ({**_PAIR, "label": label, "idx": 1}, _texts(f"stsb {_PAIR_TEXT}", target))
        for label, target in [(3.8, "3.8"), (0.0, "0.0"), (4.333, "4.4"), (2.75, "2.8"), (0.5, "0.4"), (-1.0, "-1.0")]
    ],
    **{
        name: _labels(_NLI, f"mnli {_NLI_TEXT}", "entailment", "neutral", "contradiction")
        for name in ("glue_mnli", "glue_mnli_matched", "glue_mnli_mismatched", "glue_ax")
    },
    "glue_qnli": _labels(
        {"question": "Who won?", "sentence": "Ann won."},
        "qnli question: Who won? sentence: Ann won.",
        "entailment",
        "not_entailment",
    ),
    "glue_rte": _labels(_PAIR, f"rte {_PAIR_TEXT}", "entailment", "not_entailment"),
    "glue_wnli": _labels(_PAIR, f"wnli {_PAIR_TEXT}", "not_entailment", "entailment"),
    "glue_wnli_eval": [
        _wnli(
            "The cup fell on the plate. It broke.",
            "The cup broke.",
            1,
            "The cup fell on the plate. *It* broke.",
            "The cup",
        ),
        _wnli("Ann gave Eve her coat.", "Ann gave Eve Ann's coat.", -1, "Ann gave Eve *her* coat.", "Ann"),
        _wnli(
            "Dan took his boat and his van, and then he was sailing it to the isle.",
            "He was sailing the boat to the isle.",
            1,
            "Dan took his boat and his van, and then he was sailing *it* to the isle.",
            "the boat",
        ),
        _wnli(
            "I put the jar on the shelf and a lid on it.",
            "A lid on the old jar.",
            0,
            "I put the jar on the shelf and a lid on *it* .",
            "the old jar",
        ),
        _wnli(
            "We met the Joneses' friends; they sang.",
            "Joneses' sang.",
            0,
            "We met the Joneses' friends; *they* sang.",
            "Joneses",
        ),
    ],
    "super_glue_boolq": _labels(
        {"passage": "Ice is water.", "question": "is ice wet"},
        "boolq passage: Ice is water. question: is ice wet",
        "False",
        "True",
    ),
    "super_glue_cb": _labels(_NLI, f"cb {_NLI_TEXT}", "entailment", "contradiction", "neutral"),
    "super_glue_copa": _labels(
        {"choice1": "It fell.", "choice2": "It flew.", "premise": "I let go.", "question": "effect"},
        "copa choice1: It fell. choice2: It flew. premise: I let go. question: effect",
        "choice1",
        "choice2",
    ),
    "super_glue_multirc": [_multirc(0, "False"), _multirc(1, "True"), _multirc(-1, "<unk>")],
    "super_glue_record": [_record(["Eve"], ["Eve"]), _record(["Ann", "Eve"], ["Ann", "Eve"]), _record([], ["<unk>"])],
    "super_glue_rte": _labels(_NLI, f"rte {_NLI_TEXT}", "entailment", "not_entailment"),
    "super_glue_wic": _labels(
        {
            "sentence1": "A bank.",
            "sentence2": "Bank on it.",
            "word": "bank",
            "start1": 2,
            "start2": 0,
            "end1": 6,
            "end2": 4,
        },
        "wic sentence1: A bank. sentence2: Bank on it. word: bank",
        "False",
        "True",
    ),
    "super_glue_axb": _labels(
        _PAIR, "rte hypothesis: The day was wet. premise: It rained all day.", "entailment", "not_entailment"
    ),
    "super_glue_axg": _labels(_NLI, f"rte {_NLI_TEXT}", "entailment", "not_entailment"),
    "super_glue_wsc": _WSC,
    "dpr": [
        _dpr("Ann met Eve's aunt and she greeted her.", "she", 0, "wsc: Ann met Eve's aunt and *she* greeted her."),
        _dpr(
            "Ann met Eve's aunt, then saw her, her coat.",
            "her",
            1,
            "wsc: Ann met Eve's aunt, then saw *her*, her coat.",
        ),
        _dpr("Ann ran from that old lady.", "that old lady", 1, "wsc: Ann ran from *that old lady*."),
        _dpr("She saw Ann", "She", 0, "wsc: She saw Ann"),
    ],
    "squad": [
        (
            _SQUAD,
            _texts(
                "question: Which is Italy ' s longest - known river ? context: "
                "The Po\u00a0 ( 652 km ) is Italy ' s longest ; it flows east — past Turin…",
                "the Po",
                answers=_ANSWERS,
            ),
        )
    ],
    "squad_closed_book": [
        (
            _SQUAD,
            _texts("squad trivia question: Which is Italy ' s longest - known river ? ", "the Po", answers=_ANSWERS),
        )
    ],
    "cnn_dailymail": [
        (
            {"article": "Rain fell .  All day.", "highlights": "Rain .\nMore rain .", "publisher": "cnn", "id": "x"},
            _texts("summarize: Rain fell .  All day.", "Rain .\nMore rain ."),
        )
    ],
    "wmt_t2t_ende": _wmt("de", "German", "Das Haus: klein."),
    "wmt14_ende": _wmt("de", "German", "Größe."),
    "wmt14_enfr": _wmt("fr", "French", "La maison : elle est petite."),
    "wmt15_enfr": _wmt("fr", "French", "L’été."),
    "wmt16_enro": _wmt("ro", "Romanian", "Casa e mică."),
}
# Rows of the split `train`, if they become different examples.
TRAINED = {"super_glue_wsc": [(row, examples if row["label"] else []) for row, examples in _WSC]}
# Names of the same tasks in t5.data; two tasks there may be one here.
T5_TRAINED = {"super_glue_wsc": "super_glue_wsc_v102_simple_train"}
T5_NAMES = {
    **{name: f"{name}_v002" for name in ROWS if name.startswith("glue")},
    **{name: f"{name}_v102" for name in ROWS if name.startswith("super_glue")},
    **{name: f"{name}_v003" for name in ROWS if name.startswith("wmt")},
    "glue_wnli_eval": "glue_wnli_v002_simple_eval",
    "super_glue_wsc": "super_glue_wsc_v102_simple_eval",
    "dpr": "dpr_v001_simple",
    "squad": "squad_v010_allanswers",
    "squad_closed_book": "squad_v010_context_free",
    "cnn_dailymail": "cnn_dailymail_v002",
}
