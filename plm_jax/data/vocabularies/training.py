"""Training of vocabularies: SentencePiece, WordPiece, byte-level BPE, tiktoken and words.

Special tokens have the ids of the config; those with ids of `train_size` or more are not in the files. The same texts
in the same order give the same files. A vocabulary of words may have fewer than `train_size` tokens; all others have
exactly `train_size` tokens.
"""

import base64
import collections
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import sentencepiece
import tokenizers

from plm_jax.common import sentence_models, storage
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import folding, loading, sentences, tokenizer_files
from plm_jax.data.vocabularies.symbols import SYMBOLS, WORD_SYMBOLS, WORDPIECE_SYMBOLS
from plm_jax.data.vocabulary_config import VocabularyConfig

# RoBERTa's symbols; the first one wins if an id has several. GPT-2 has only the end of text.
_BPE_SYMBOLS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", **SYMBOLS, "mask": "<mask>"}
_END_OF_TEXT = "<|endoftext|>"
# Share of the characters of the texts that a vocabulary covers, as SentencePiece recommends for large character sets.
_CHARACTER_COVERAGE = 0.9999
# Smallest number of occurrences of a merged pair.
_MIN_COUNT = 2
# Scores of unigrams are multiples of 1 / this. Sums up to 16,384, as for a long page, are then exact in float32, which
# SentencePiece uses. Other implementations then choose the same one of two equally good splits.
_SCORE_GRID = 2**10
# First character of a private use area of Unicode.
_PRIVATE = 0xF0000


class TrainingTask(NamedTuple):
    """Vocabulary to train.

    Attributes:
      texts: texts to train on.
      settings: settings of the vocabulary.
      kind: `train_kind`, or the default of the scheme.
      show_progress: whether to show a progress bar.
    """

    texts: Iterable[str]
    settings: VocabularyConfig
    kind: str
    show_progress: bool


def resolve_settings(settings: VocabularyConfig) -> dict[str, Any]:
    """Returns the settings `train_size`, `train_kind` and `lowercase` of a vocabulary that can be trained.

    If `train_kind` is empty, the result has the default of the scheme.
    """
    _, kinds = _TRAINERS[settings.spec.partition(":")[0]]
    fields = {name: getattr(settings, name) for name in ("train_size", "train_kind", "lowercase")}
    return fields | {"train_kind": settings.train_kind or kinds[0]}


def train(texts: Iterable[str], settings: VocabularyConfig, show_progress: bool = False) -> None:
    """Trains a vocabulary and writes the files of `settings.spec`.

    Args:
      texts: texts to train on. SentencePiece keeps all texts in memory; the other schemes keep only counts of words.

    Raises:
      UserError: the scheme cannot be trained with these settings, a special token has no symbol in the scheme, or there
        are too few texts for `train_size`.
    """
    scheme, paths = settings.spec.partition(":")[0], loading.files(settings.spec)
    if scheme not in _TRAINERS:
        raise UserError(
            f"{', '.join(paths)} is missing and {scheme} cannot be trained: put it there, or train one of "
            f"{', '.join(_TRAINERS)}"
        )
    loading.check_lowercase(settings)
    trainer, kinds = _TRAINERS[scheme]
    kind = settings.train_kind or kinds[0]
    if kind not in kinds:
        known = " or ".join(filter(None, kinds)) or "no kinds"
        raise UserError(f"config.vocabulary.train_kind is '{kind}', but {scheme} has {known}: change or remove it")
    for path, content in zip(paths, trainer(TrainingTask(texts, settings, kind, show_progress)), strict=True):
        storage.write(path, content)


def _sentencepiece(task: TrainingTask) -> list[bytes]:
    """Trains a unigram or BPE model.

    In the texts for training, a run of white space counts as one space, and text is folded if `lowercase` is set. The
    model itself does not normalize text, and it encodes unknown characters as bytes. A single thread and no sampling
    make the result deterministic.
    """
    if task.settings.unk is None:
        raise UserError("SentencePiece needs an unk id: set config.vocabulary.unk")
    special_ids = ((name, getattr(task.settings, name)) for name in SPECIALS)
    # Ids of at least `train_size` are above those of the file.
    ids = {name: -1 if i is None or i >= task.settings.train_size else i for name, i in special_ids}
    # Control symbols, which text never becomes, get the lowest free ids in this order.
    symbols = sorted((i, symbol) for name, symbol in SYMBOLS.items() if (i := ids[name]) >= 0)
    parts = map(folding.fold, _sentences(task.texts)) if task.settings.lowercase else _sentences(task.texts)
    model = io.BytesIO()
    trainer: Any = sentencepiece.SentencePieceTrainer  # The library does not declare its methods.
    try:
        trainer.train(
            sentence_iterator=(" ".join(part.split()) for part in parts),
            model_writer=model,
            model_type=task.kind,
            vocab_size=task.settings.train_size,
            character_coverage=_CHARACTER_COVERAGE,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=2**16,
            num_threads=1,
            minloglevel=2,
            control_symbols=[symbol for _, symbol in symbols],
            **{f"{name}_id": i for name, i in ids.items() if name not in SYMBOLS},
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split(") ", 1)[-1].split())[-300:]
        raise UserError(
            f"cannot train a SentencePiece vocabulary of {task.settings.train_size} tokens: {reason}"
        ) from error
    return [_on_grid(model.getvalue()) if task.kind == "unigram" else model.getvalue()]


def _on_grid(data: bytes) -> bytes:
    """Rounds the scores of a SentencePiece model to multiples of 1 / _SCORE_GRID."""
    model = sentence_models.parse(data)
    for piece in model.pieces:
        piece.score = round(piece.score * _SCORE_GRID) / _SCORE_GRID
    return model.SerializeToString(deterministic=True)


def _words(task: TrainingTask) -> list[bytes]:
    """Returns a file with the three special tokens and then the most frequent words, the most frequent first."""
    symbols = {getattr(task.settings, name): symbol for name, symbol in WORD_SYMBOLS.items()}
    if symbols.keys() != set(range(len(symbols))):
        raise UserError(
            "a vocabulary of words begins with bos, eos and unk: set these ids in config.vocabulary to 0, 1 and 2"
        )
    counts = collections.Counter(word for text in task.texts for word in text.split())
    for symbol in symbols.values():
        counts.pop(symbol, None)
    if not counts:
        raise UserError("the sources have no document for training: check their paths")
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, task.settings.train_size - len(symbols))]
    return ["\n".join([*(symbols[i] for i in sorted(symbols)), *frequent, ""]).encode("utf-8", "replace")]


def _byte_pairs(task: TrainingTask) -> list[bytes]:
    """Trains GPT-2's byte-level BPE: bytes, then merged tokens in the order of the merges."""
    is_alone = task.settings.bos in (None, task.settings.eos)
    table = _symbols_at(task.settings, _BPE_SYMBOLS | (dict.fromkeys(("bos", "eos"), _END_OF_TEXT) if is_alone else {}))
    characters, tokenizer = tokenizer_files.byte_characters(), tokenizer_files.byte_level(tokenizers.models.BPE())
    room = _room(task.settings, table, len(characters))
    tokens, merges = _merge(tokenizer, _sentences(task.texts), room, characters, task.show_progress)
    ids = {token: i for i, token in enumerate(_place_symbols(task.settings, table, tokens))}
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    return [json.dumps(ids, ensure_ascii=False).encode("utf-8"), "\n".join(lines).encode("utf-8")]


def _tiktoken(task: TrainingTask) -> list[bytes]:
    """Trains LLaMA 3's byte-level BPE: a rank for each byte and each merged token."""
    _symbols_at(task.settings, {})
    characters = tokenizer_files.byte_characters()
    tokenizer = tokenizer_files.byte_level(tokenizers.models.BPE(), tokenizer_files.LLAMA3_SPLIT)
    room = _room(task.settings, {}, len(characters))
    tokens, _ = _merge(tokenizer, _sentences(task.texts), room, characters, task.show_progress)
    byte = {character: i for i, character in enumerate(characters)}
    encoded = (bytes(map(byte.__getitem__, token)) for token in _place_symbols(task.settings, {}, tokens))
    return [b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(encoded))]


def _wordpiece(task: TrainingTask) -> list[bytes]:
    """Trains BERT's word pieces: characters, then merged pieces in the order of the merges.

    Rare characters are left out of the vocabulary, and so are characters for which it has no room, as can happen in
    Chinese. Words that contain them are unknown. The WordPiece trainer of the library numbers letters in the order of a
    hash table, so its files differ from run to run. The BPE trainer is used instead, with each letter replaced by a
    private-use character. A letter at the beginning of a word and the same letter elsewhere are replaced by different
    characters.
    """
    if task.settings.unk is None:
        raise UserError("WordPiece needs an unk id: set config.vocabulary.unk")
    table = _symbols_at(task.settings, WORDPIECE_SYMBOLS)
    bert, room = tokenizer_files.bert({}, lowercase=task.kind == "uncased"), _room(task.settings, table, 1)
    words = collections.Counter(
        word
        for sentence in _sentences(task.texts)
        for word, _ in bert.pre_tokenizer.pre_tokenize_str(bert.normalizer.normalize_str(sentence))
    )
    letters = collections.Counter()
    for word, count in words.items():
        for letter in _letters(word):
            letters[letter] += count
    if task.kind == "uncased":  # Libraries differ in their version of Unicode and may not lowercase new letters.
        letters = collections.Counter({letter: n for letter, n in letters.items() if letter == letter.lower()})
    alphabet = sorted(_covering(letters)[:room])
    codes = {letter: chr(_PRIVATE + i) for i, letter in enumerate(alphabet)}
    coded = (("".join(codes.get(letter, "") for letter in _letters(word)), word) for word in words)
    repeated = (" ".join(itertools.repeat(code, words[word])) for code, word in coded if len(code) == len(word))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    merged, _ = _merge(tokenizer, repeated, room, codes.values(), task.show_progress)
    parts = ([alphabet[ord(code) - _PRIVATE] for code in token] for token in merged)
    tokens = [first + "".join(letter.removeprefix("##") for letter in rest) for first, *rest in parts]
    return ["\n".join([*_place_symbols(task.settings, table, tokens), ""]).encode("utf-8")]


def _letters(word: str) -> list[str]:
    return [word[0], *("##" + letter for letter in word[1:])]


def _covering(counts: Mapping[str, int]) -> list[str]:
    """Returns the fewest letters, most frequent first, that have the share _CHARACTER_COVERAGE of all counts."""
    by_count = sorted(counts, key=lambda letter: (-counts[letter], letter))
    before = itertools.accumulate((counts[letter] for letter in by_count), initial=0)
    enough = _CHARACTER_COVERAGE * sum(counts.values())
    return [letter for letter, sum_before in zip(by_count, before, strict=False) if sum_before < enough]


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yields the sentences of texts, except sentences of white space.

    Training on sentences needs less memory than training on long texts. No word spans two sentences.
    """
    return (sentence for text in texts for sentence in sentences.split(text) if sentence.strip())


def _merge(
    tokenizer: tokenizers.Tokenizer, texts: Iterable[str], size: int, alphabet: Iterable[str], show_progress: bool
) -> tuple[list[str], list[tuple[str, str]]]:
    """Trains a BPE.

    Returns:
      A pair: the tokens, at most `size`, with the sorted alphabet first; and the merges.
    """
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, min_frequency=_MIN_COUNT, initial_alphabet=list(alphabet), show_progress=show_progress
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return sorted(ids, key=ids.__getitem__), [tuple(pair) for pair in merges]


def _symbols_at(settings: VocabularyConfig, symbols: Mapping[str, str]) -> dict[int, str]:
    """Returns a dict from special ids below `train_size` to symbols.

    If several symbols have the same id, the dict has the first of them.

    Raises:
      UserError: no symbol has one of these ids.
    """
    ids = {name: i for name in SPECIALS if (i := getattr(settings, name)) is not None and i < settings.train_size}
    table = {}
    for name, symbol in symbols.items():
        if name in ids:
            table.setdefault(ids[name], symbol)
    for name, i in ids.items():
        if i not in table:
            scheme = settings.spec.partition(":")[0]
            raise UserError(
                f"a {scheme} vocabulary has no symbol for {name}: remove config.vocabulary.{name}, or set it to an id "
                f"of at least {settings.train_size}"
            )
    return table


def _room(settings: VocabularyConfig, table: Mapping[int, str], num_letters: int) -> int:
    """Returns the number of tokens, letters included, for which the symbols in `table` leave room.

    Raises:
      UserError: `num_letters` do not fit.
    """
    if (least := num_letters + len(table)) > settings.train_size:
        raise UserError(
            f"config.vocabulary.train_size is {settings.train_size}, but the letters of the texts and the special "
            f"tokens alone are {least}: raise it"
        )
    return settings.train_size - len(table)


def _place_symbols(settings: VocabularyConfig, table: Mapping[int, str], tokens: list[str]) -> list[str]:
    """Returns the list of all tokens: symbols at their ids, and `tokens` in order at the remaining ids.

    Raises:
      UserError: there are too few tokens.
    """
    if (total := len(tokens) + len(table)) < settings.train_size:
        raise UserError(
            f"config.vocabulary.train_size is {settings.train_size}, but the texts have no more than {total} tokens: "
            "lower it or add more text"
        )
    remaining = iter(tokens)
    return [table[i] if i in table else next(remaining) for i in range(settings.train_size)]


# Trainers by scheme, which return the contents of the files, and their kinds, the default first.
_TRAINERS = {
    "sentencepiece": (_sentencepiece, ("unigram", "bpe")),
    "wordpiece": (_wordpiece, ("uncased", "cased")),
    "bpe": (_byte_pairs, ("",)),
    "tiktoken": (_tiktoken, ("",)),
    "words": (_words, ("",)),
}
