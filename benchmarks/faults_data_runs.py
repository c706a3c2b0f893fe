"""Caches that `faults_data.py` damages, and the runs that read them.

python benchmarks/faults_data_runs.py DIR    # makes the caches
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import random
import sys
from collections.abc import Callable
from typing import Any

import faults_damage
import fsspec
import numpy as np

from plm_jax import config, models, objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.cache import columns
from plm_jax.data.reader import Reader
from plm_jax.runs import preparation

_WORDS = "river mountain teacher garden winter station letter captain doctor harbour market village"
WORDS = _WORDS.split()
# Number of documents in the long cache, each of one token and one sentence: its vectors are too long to be read whole.
LONG = 2**21 + 2**12
STEPS, BATCH = 6, 8
AFAR = "memory://faults"

_VOCABULARY = config.VocabularyConfig("bytes", eos=256, pad=257, bos=258, cls=258, sep=259, mask=260, sentinels=8)
_MODEL = {
    "embedding": models.EmbeddingConfig(272, 8, token_types=2),
    "attention": models.AttentionConfig(1, 8, models.NoPositions()),
    "feed_forward": models.FeedForwardConfig(8),
    "stack": models.StackConfig(1),
}


_DECODER = models.DecoderConfig(**_MODEL)
_ENCODER_DECODER = models.EncoderDecoderConfig(**_MODEL, decoder_stack=models.StackConfig(1))
RUNS = ("causal", "pairs", "sentences", "questions", "examples", "words", "long", "afar")


def run_of(root: pathlib.Path, name: str) -> config.Run:
    """Returns the run of a name in RUNS."""
    texts = {source: config.TextTable(str(root / f"{source}.jsonl")) for source in ("a", "b")}
    questions = config.LabeledTable(str(root / "questions.jsonl"), config.AnswerForm())
    examples = config.TableInputsTargets(str(root / "examples.jsonl"), "{a}", "{b}")
    words = config.VocabularyConfig(f"words:{root / 'words.txt'}", train_size=30, bos=0, eos=1, unk=2)
    encoder = models.EncoderConfig(**_MODEL, pooler=models.Pooler())
    long = (_DECODER, objectives.Causal(), {"sources": {"long": config.TextFiles("-")}, "length": 64})
    model, objective, data = {
        "causal": (_DECODER, objectives.Causal(), {"layout": config.Blocks(attend_across_documents=False)}),
        "pairs": (encoder, objectives.MaskedLM(), {"layout": config.SentencePairs(duplicates=2)}),
        "sentences": (_ENCODER_DECODER, objectives.Denoising(insert=0.1), {"layout": config.FullSentences()}),
        "questions": (
            dataclasses.replace(encoder, pooler=models.NoHead()),
            objectives.SpanExtraction(stride=16, question_length=24),
            {"sources": {"questions": questions}, "layout": config.LabeledLayout(), "length": 96},
        ),
        "examples": (
            _ENCODER_DECODER,
            objectives.SpanCorruption(),
            {
                "sources": {"examples": examples},
                "inputs_targets": config.InputsTargetsConfig(packed=True),
                "length": 160,
            },
        ),
        "words": (
            models.ElmoConfig(embedding=models.CharacterCNNConfig(vocab_size=32)),
            objectives.BidirectionalLM(),
            {"sources": {"a": texts["a"]}, "layout": config.Streams(), "length": 5},
        ),
        "long": long,
        "afar": long,
    }[name]
    caches = {"words": str(root / "cache_of_words"), "afar": AFAR}
    defaults = {"sources": texts, "length": 32, "cache_dir": caches.get(name, str(root / "cache"))}
    return config.Run(
        model=model,
        objective=objective,
        data=config.DataConfig(threads=2, prefetch=2, window_tokens=512, validation_fraction=0.1, **defaults | data),
        vocabulary=words if name == "words" else _VOCABULARY,
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-3),
        train=config.TrainConfig(steps=STEPS, batch_size=BATCH, seed=1),
    )


def make(root: pathlib.Path) -> None:
    """Writes texts and the caches of all runs, by `prepare`, except the long one."""
    root.mkdir()
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 9))).capitalize() + "."

    def rows(number: int, make: Callable[[int], dict[str, Any]]) -> bytes:
        return "".join(json.dumps(make(i)) + "\n" for i in range(number)).encode()

    def question(number: int) -> dict[str, Any]:
        context = " ".join(sentence() for _ in range(4))
        word = rng.choice(context[:-1].split())
        answers = {"text": [word], "answer_start": [context.index(word)]}
        return {"question": f"Where is {word}?", "context": context, "answers": answers}

    for name in "ab":
        storage.write(
            str(root / f"{name}.jsonl"), rows(400, lambda i: {"text": " ".join(sentence() for _ in range(6))})
        )
    storage.write(str(root / "questions.jsonl"), rows(80, question))
    storage.write(str(root / "examples.jsonl"), rows(200, lambda i: {"a": sentence(), "b": sentence()}))
    for name in ("causal", "questions", "examples", "words"):
        preparation.prepare(run_of(root, name), show_progress=False)
    _make_long(root)
    for name in set(RUNS) - {"afar"}:
        read(root, name)  # Makes the indices of layouts.


def _make_long(root: pathlib.Path) -> None:
    temporary, ones = root / "cache" / ".long", np.ones(LONG, np.int64)
    values = {
        "tokens": cache.Values(np.random.default_rng(0).integers(0, 256, LONG), ones),
        "sentence_starts": cache.Values(np.zeros(LONG, np.int64), ones),
        "first_bytes": cache.Values(ones),
    }
    names = (columns.SENTENCE_STARTS, columns.FIRST_BYTES)
    vocabulary = cache.read_manifest(str(root / "cache" / "a"))["vocabulary"]
    size = vocabulary["size"]
    writer = cache.SplitWriter(str(temporary / "train"), size, names)
    writer.add(values, LONG)
    counts = {"train": writer.close()}
    described = cache.describe(size, names, np.ones(size, np.bool_), str(temporary))
    manifest = {"identity": "long", "vocabulary": vocabulary, "splits": counts, **described}
    cache.publish(str(temporary), str(root / "cache" / "long"), manifest)


def read(root: pathlib.Path, name: str, damage: Callable[[], None] | None = None, processes: int = 0) -> None:
    """Reads caches as a run does, and prints digests of its batches and validation, counts of tokens and notes.

    Args:
      root: folder of the caches.
      name: name in RUNS.
      damage: called after the first batch.
      processes: number of worker processes.
    """
    run = run_of(root, name)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, processes=processes))
    if name == "afar":
        os.environ["HOME"] = str(root / "home")  # Folder of the mirror.
        _upload(root)
    of_files = config.read_sources(run) if name not in ("long", "afar") else ()
    if changed := preparation.changed_caches(run, of_files):
        raise UserError("; ".join(changed))  # As in a run that was trained on other caches.
    reader = Reader(config.reader_config(run), share=1 / 1024 if name == "afar" else 1.0)
    reader.check_vocabulary()
    batches = reader.batches(0)
    print(_digest(next(batches)))
    if damage:
        damage()
        if name == "afar":
            _upload(root)
    for batch in batches:
        print(_digest(batch))
    for split in ("validation", "train") if name not in ("long", "afar") else ():
        for batch in reader.in_order(split, 16, max_batches=40):
            print(_digest(batch))
    for name, source in reader.sources.items():
        for split, opened in source.splits.items():
            print(name, split, opened.num_bytes, hashlib.sha256(opened.unigram.tobytes()).hexdigest())
            origins = [source.origin(split, document) for document in range(0, min(400, opened.num_documents), 50)]
            print([position for _, position in filter(None, origins)])
    print(*reader.notes(), sep="\n")


def _upload(root: pathlib.Path) -> None:
    """Copies the long cache to a simulated bucket of this process."""
    memory, folder = fsspec.filesystem("memory"), root / "cache" / "long"
    memory.store.clear()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        memory.pipe_file(f"/faults/long/{path.relative_to(folder)}", path.read_bytes())


def _digest(batch: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key, values in sorted(batch.items()):
        digest.update(f"{key} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()[:16]


def _files(root: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Returns the files that a run reads."""
    run = run_of(root, name)
    folder = root / "cache" if name == "afar" else pathlib.Path(run.data.cache_dir)
    folders = [folder / ("long" if name == "afar" else source) for source in run.data.sources]
    paths = [path for each in (*folders, folder / "vocabulary") for path in faults_damage.files_of(each)]
    return [path for path in paths if path.name != ".lock"]


def damage(root: pathlib.Path, name: str, rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """Chooses a damage to a file that a run reads; returns a description and a function that does it."""
    kind = rng.choice((*faults_damage.BYTES, "flipped", "missing", "emptied", "added", "swapped", "fields", "fields"))
    path = rng.choice([path for path in _files(root, name) if kind != "fields" or path.suffix == ".json"])
    own_rng = random.Random(rng.random())

    def do() -> None:
        if kind == "fields":
            faults_damage.change_json(path, functools.partial(_spoil_manifest, own_rng))
        elif kind in faults_damage.BYTES:
            faults_damage.garble(path, own_rng, (kind,))
        else:
            faults_damage.FILES[kind](path, path.parent, own_rng)

    return f"{path.relative_to(root)} {kind}", do


def _spoil_manifest(rng: random.Random, tree: dict[str, Any]) -> None:
    """Removes a field of a manifest, or changes its type, and seals it again."""
    crc = tree.pop("crc32", None)
    faults_damage.spoil(tree, rng, removed=0.4, other_type=True)
    if crc is not None:
        tree["crc32"] = cache.crc32(tree)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
