"""Report of the text that each rule removed: a table with examples, and a plot."""

import io
from collections.abc import Sequence
from typing import Any

from plm_jax.cleaning import decontamination, settings


def reasons(rule: settings.CleaningConfig) -> dict[str, tuple[str, str, str]]:
    """Returns the step, the counted unit and a description of each possible reason for removal, by reason."""
    descriptions = {
        "quarantined": ("reading", "records", "cannot be read; saved in quarantine/"),
        "no_html": ("reading", "records", "a response that is not an HTML page"),
        "no_url": ("reading", "pages", "no URL"),
        "no_text": ("reading", "pages", "no text"),
        "no_timestamp": ("reading", "pages", "no time"),
        "too_long": ("length", "pages", f"more than {rule.max_characters:,} characters"),
        "other_domain": ("sites", "pages", "a site that is not listed"),
        "other_subdomain": ("sites", "pages", "a subdomain that is not listed"),
        "older_copy": ("newest copies", "pages", "an older copy of a URL"),
        "unlisted_url": ("list of URLs", "pages", "a URL that is not listed"),
    }
    if rule.repetition is not None:
        descriptions |= _repetition(rule.repetition)
    if rule.quality is not None:
        descriptions |= _quality(rule.quality)
    if (paragraphs := rule.paragraphs) is not None:
        few = f"fewer than {paragraphs.min_paragraphs} lines of {paragraphs.min_characters} characters"
        descriptions["few_paragraphs"] = ("paragraphs", "pages", few)
    if (lines := rule.lines) is not None:
        descriptions |= {
            "long_word": ("lines", "lines", f"a word of more than {lines.max_word_characters:,} characters"),
            "no_end_mark": ("lines", "lines", f"ends in none of {' '.join(lines.end_marks)}, or in an ellipsis"),
            "few_words": ("lines", "lines", f"fewer than {lines.min_words} words"),
            "script": ("lines", "lines", f"contains {_listed(lines.script_phrases)}"),
            "policy": ("lines", "lines", f"contains {_listed(lines.policy_phrases)}"),
            "placeholder": ("lines", "pages", f"contains {_listed(lines.placeholder_phrases)}"),
            "code": ("lines", "pages", f"contains {_listed(lines.code_marks)}"),
            "few_sentences": ("lines", "pages", f"fewer than {lines.min_sentences} sentences"),
        }
    if rule.fineweb is not None:
        descriptions |= _fineweb(rule.fineweb)
    if (duplicates := rule.duplicates) is not None:
        spans = isinstance(duplicates, settings.DuplicateSpansConfig)
        part, unit = ("span", "sentences") if spans else ("line", "lines")
        descriptions |= {
            f"{part}_elsewhere": ("duplicates", unit, f"a {part} that another page keeps"),
            f"{part}_here": ("duplicates", unit, f"a {part} that occurs earlier in the page"),
            "nothing_new": ("duplicates", "pages", "nothing is left"),
            "few_new_sentences": ("duplicates", "pages", f"fewer than {duplicates.min_sentences} sentences left"),
        }
    if (language := rule.language) is not None:
        languages = language.language if isinstance(language, settings.LangdetectConfig) else "the selected ones"
        descriptions |= {
            "unsure_language": ("language", "pages", f"no language with probability {language.min_probability}"),
            "other_language": ("language", "pages", f"another language than {languages}"),
        }
    if rule.badwords is not None:
        descriptions["bad_word"] = ("bad words", "pages", "a word on the list of the language")
    if (evaluations := rule.decontamination) is not None:
        shared = f"shares {evaluations.words} words in a row with an evaluation set"
        descriptions["contaminated"] = ("decontamination", "pages", shared)
    if rule.near_duplicates is not None:
        descriptions["near_duplicate"] = ("near-duplicates", "pages", "similar to a page that is kept")
    return descriptions


def _repetition(rule: settings.GopherRepetitionConfig) -> dict[str, tuple[str, str, str]]:
    limits = {
        "repeated_paragraphs": f"more than {rule.max_paragraph_share:.0%} of paragraphs occur earlier",
        "text_in_repeated_paragraphs": f"more than {rule.max_paragraph_characters:.0%} of text in repeated paragraphs",
        "repeated_lines": f"more than {rule.max_line_share:.0%} of lines occur earlier",
        "text_in_repeated_lines": f"more than {rule.max_line_characters:.0%} of text in repeated lines",
    }
    for size, limit in enumerate(rule.max_frequent_ngrams, 2):
        limits[f"frequent_{size}_gram"] = f"more than {limit:.0%} of text in the most frequent {size}-gram of words"
    for size, limit in enumerate(rule.max_repeated_ngrams, 5):
        limits[f"repeated_{size}_grams"] = f"more than {limit:.0%} of text in {size}-grams of words that occur earlier"
    return {reason: ("repetition", "pages", limit) for reason, limit in limits.items()}


def _quality(rule: settings.GopherQualityConfig) -> dict[str, tuple[str, str, str]]:
    limits = {
        "short_page": f"fewer than {rule.min_words:,} words",
        "long_page": f"more than {rule.max_words:,} words",
        "short_words": f"words of fewer than {rule.min_word_characters:g} characters on average",
        "long_words": f"words of more than {rule.max_word_characters:g} characters on average",
        "hash_signs": f"more than {rule.max_symbols:g} hash signs per word",
        "ellipses": f"more than {rule.max_symbols:g} ellipses per word",
        "bullet_lines": f"more than {rule.max_bullet_lines:.0%} of lines start with a bullet point",
        "ellipsis_lines": f"more than {rule.max_ellipsis_lines:.0%} of lines end with an ellipsis",
        "few_alphabetic_words": f"fewer than {rule.min_alphabetic_words:.0%} of words have a letter",
        "few_stop_words": f"fewer than {rule.min_stop_words} of the words {', '.join(rule.stop_words)}",
    }
    return {reason: ("quality", "pages", limit) for reason, limit in limits.items()}


def _fineweb(rule: settings.FineWebQualityConfig) -> dict[str, tuple[str, str, str]]:
    marks, length = " ".join(rule.end_marks), rule.short_line_characters
    limits = {
        "few_punctuated_lines": f"fewer than {rule.min_punctuated_lines:.0%} of lines end in {marks}",
        "short_lines": f"more than {rule.max_short_lines:.0%} of lines have at most {length} characters",
        "repeated_line_text": f"more than {rule.max_repeated_characters:.0%} of text in repeated lines",
        "few_words_per_line": f"more than {rule.max_lines_per_word:g} line breaks per word",
    }
    return {reason: ("FineWeb", "pages", limit) for reason, limit in limits.items()}


def _listed(phrases: tuple[str, ...]) -> str:
    return " or ".join(f'"{phrase}"' for phrase in phrases)


def steps(rule: settings.CleaningConfig, counts: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Returns the numbers of pages and characters left after each step, by step and in order.

    A step is omitted if no page reached it.
    """
    names = (
        "length",
        "sites",
        "newest copies",
        "list of URLs",
        "repetition",
        "quality",
        "paragraphs",
        "lines",
        "FineWeb",
    )
    names += ("duplicates", "language", "bad words", "decontamination", "near-duplicates")
    after = {"reading": counts.get("read")} | {name: counts.get(f"after {name}") for name in names}
    removes = {step for reason, (step, _, _) in reasons(rule).items() if reason in counts}
    left = {name: (count["number"], count["characters"]) if count else (0, 0) for name, count in after.items()}
    return {name: sizes for name, sizes in left.items() if after[name] or name in removes}


def table(rule: settings.CleaningConfig, counts: dict[str, Any]) -> str:
    """Returns two Markdown tables: the text left after each step, and the text removed for each reason."""
    left = steps(rule, counts)
    first = left["reading"]
    rows = ["| after | pages | characters | of all characters |", "|---|---:|---:|---:|"]
    rows += [f"| {name} | {n:,} | {size:,} | {size / max(first[1], 1):.1%} |" for name, (n, size) in left.items()]
    rows += ["", "| step | removed | because | number | characters |", "|---|---|---|---:|---:|"]
    for reason, (step, unit, description) in reasons(rule).items():
        if reason in counts:
            number, size = counts[reason]["number"], counts[reason]["characters"]
            rows.append(f"| {step} | {unit} | {_escape(description)} | {number:,} | {size:,} |")
    return "\n".join(rows) + "\n"


def contamination(evaluations: Sequence[decontamination.EvaluationFile], counts: dict[str, Any]) -> str:
    """Returns a Markdown table with the numbers of removed pages and of examples per evaluation file.

    Returns "" if there are no evaluation files.
    """
    rows = [
        "",
        "| evaluation file | removed pages | examples | found in pages | too short |",
        "|---|---:|---:|---:|---:|",
    ]
    for path, num_examples, num_short in evaluations:
        num_pages = counts.get(f"evaluation {path}", {"number": 0})["number"]
        num_found = sum(name.startswith(f"example {path}:") for name in counts)
        rows.append(f"| {_escape(path)} | {num_pages:,} | {num_examples:,} | {num_found:,} | {num_short:,} |")
    return "\n".join(rows) + "\n" if evaluations else ""


def examples(rule: settings.CleaningConfig, counts: dict[str, Any]) -> str:
    """Returns examples of the text that was removed for each reason, in Markdown."""
    parts = []
    for reason, (step, unit, description) in reasons(rule).items():
        removed = counts.get(reason, {}).get("examples")
        if removed:
            lines = [f"- `{_escape(example['url'])}`: {_escape(example['text'])}" for example in removed]
            parts.append("\n".join([f"## {step}, {unit}: {_escape(description)}", "", *lines, ""]))
    return "\n".join(parts)


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def plot(rule: settings.CleaningConfig, counts: dict[str, Any]) -> bytes:
    """Returns an SVG: the shares of pages and characters left after each step, and the characters removed by reason."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    shares = steps(rule, counts)
    first = shares["reading"]
    for column, (label, height) in enumerate((("pages", -0.2), ("characters", 0.2))):
        share = [values[column] / max(first[column], 1) for values in shares.values()]
        left.barh([i + height for i in range(len(shares))], share, 0.4, label=label)
    left.set(yticks=range(len(shares)), yticklabels=shares, xlabel="share left after the step", xlim=(0, 1))
    left.legend()
    removed = {reason: counts[reason]["characters"] for reason in reasons(rule) if reason in counts}
    right.barh(list(removed), list(removed.values()))
    right.set(xlabel="characters removed, logarithmic", xscale="log")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "plm_jax"}):  # Without it and the date, equal runs would differ.
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
