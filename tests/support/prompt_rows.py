"""Two rows, in TFDS's format, of each dataset of `configs/tasks` that is not part of the package."""

_PAIR = [
    {"sentence1": "The river rose.", "sentence2": "The water was higher.", "label": 1},
    {"sentence1": "The boat sank.", "sentence2": "The boat sailed on.", "label": 0},
]
_PREMISES = [
    {"premise": "The river rose", "hypothesis": "The water was higher", "label": 0},
    {"premise": "The boat sank", "hypothesis": "The boat sailed on", "label": 1},
]
_ARC = [
    {"question": "What melts ice?", "choices": {"text": ["cold", "heat", "dark"], "label": [0, 1, 2]}, "answerKey": 1},
    {"question": "What is wet?", "choices": {"text": ["rain", "sand", "iron", "salt"]}, "answerKey": 0},
]
_CONTEXT = "The Nile is in Africa. It flows north."
_SQUAD = [
    {"context": _CONTEXT, "question": "Where is it?", "answers": {"text": ["Africa"], "answer_start": [15]}},
    {"context": _CONTEXT, "question": "How long is it?", "answers": {"text": [], "answer_start": []}},
]
_LANGUAGES = [
    {"en": "Good day.", "fr": "Bonjour.", "de": "Guten Tag.", "ro": "Bună ziua."},
    {"en": "Yes.", "fr": "Oui."},
]
_LANGUAGES[1] |= {"de": "Ja.", "ro": "Da."}

ROWS = {
    "reading": _SQUAD,
    "glue:cola": [{"sentence": "They drank.", "label": 1}, {"sentence": "Drank they pub.", "label": 0}],
    "glue:sst2": [{"sentence": "a joy", "label": 1}, {"sentence": "a bore", "label": 0}],
    "glue:mrpc": _PAIR,
    "glue:stsb": [row | {"label": score} for row, score in zip(_PAIR, (4.2, 0.4), strict=True)],
    "glue:qqp": [
        {"question1": "Why?", "question2": "How come?", "label": 1},
        {"question1": "a", "question2": "b", "label": 0},
    ],
    "glue:mnli": _PREMISES,
    "glue:qnli": [
        {"question": "Where?", "sentence": "Here.", "label": 0},
        {"question": "Who?", "sentence": "No.", "label": 1},
    ],
    "glue:rte": _PAIR,
    "glue:wnli": _PAIR,
    "gpt3:piqa": [
        {"goal": "To boil water,", "sol1": "heat it", "sol2": "cool it", "label": 0},
        {"goal": "To cut wood,", "sol1": "use soap", "sol2": "use a saw", "label": 1},
    ],
    "gpt3:hellaswag": [
        {"activity_label": "Cooking", "context": "A man breaks eggs. He", "endings": ["stirs.", "swims."], "label": 0},
        {"activity_label": "Rowing", "context": "A boat turns. It", "endings": ["reads.", "drifts."], "label": 1},
    ],
    "gpt3:openbookqa": [
        {
            "question": {"stem": "Ice is", **{f"choice_{x}": t for x, t in zip("ABCD", texts, strict=True)}},
            "answerKey": 2,
        }
        for texts in (("hot", "dry", "cold", "loud"), ("red", "blue", "solid", "old"))
    ],
    "gpt3:arc_easy": _ARC,
    "gpt3:arc_challenge": _ARC,
    "gpt3:trivia_qa": [
        {"question": "Who wrote Emma?", "answer": {"aliases": ["Jane Austen", "Austen"], "value": "Jane Austen"}},
        {"question": "Which sea is salt?", "answer": {"aliases": ["The Dead Sea"], "value": "The Dead Sea"}},
    ],
    "gpt3:natural_questions": [
        {"question": "who wrote emma", "answer": ["Jane Austen", "Austen"]},
        {"question": "when was it written", "answer": ["1815"]},
    ],
    "gpt3:web_questions": [
        {"question": "who wrote emma?", "answers": ["Jane Austen"]},
        {"question": "where is the nile?", "answers": ["Africa", "Egypt"]},
    ],
    "gpt3:boolq": [
        {"passage": _CONTEXT, "question": "is the nile in asia", "label": 0},
        {"passage": _CONTEXT, "question": "does the nile flow north", "label": 1},
    ],
    "gpt3:cb": _PREMISES,
    "gpt3:rte": _PREMISES,
    "gpt3:wic": [
        {"word": "bank", "sentence1": "The bank lent.", "sentence2": "We sat on the bank.", "label": 0},
        {"word": "sea", "sentence1": "The sea rose.", "sentence2": "We saw the sea.", "label": 1},
    ],
    **{
        f"gpt3:anli_r{number}": [{"context": row["premise"], **row, "label": 2 - row["label"]} for row in _PREMISES]
        for number in (1, 2, 3)
    },
    "gpt3:squad_v2": _SQUAD,
    "gpt3:wmt14_fr_en": _LANGUAGES,
    "gpt3:wmt16_de_en": _LANGUAGES,
    "gpt3:wmt16_ro_en": _LANGUAGES,
}
