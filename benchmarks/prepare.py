"""`prepare`: its rate beside that of bare tokenizers, and the memory of every process. Prints one JSON object.

    python benchmarks/prepare.py                     # 150 MB a kind of vocabulary: eight minutes on two cores
    python benchmarks/prepare.py --megabytes=1000 --kinds=gpt2      # memory
    taskset -c 0 python benchmarks/prepare.py --runners local       # on one core
    python benchmarks/prepare.py --tiny              # to its end in seconds

The text is the State of the Union addresses that come with the package, over and over, each copy under another title,
as JSON lines; the vocabularies are made of every other address, of 4,096 pieces, or GPT-2's. The bare tokenizers have
the texts in memory and the same cores: SentencePiece's `encode` with as many threads, and Hugging Face's
`encode_batch_fast`, which gives no offsets, for byte-level BPE and WordPiece. `ratio` is `prepare`'s rate, from the
start of its process to its end, over theirs; they run in turn, and the bare ones once more after. The caches of both
runners must be the same to the byte. Then batches of 64 rows of 1,024 tokens are read. Memory is sampled ten times a
second over the tree of processes (Linux): `resident` is the kernel's own peak and counts pages of mapped files too,
`anonymous` the largest that was seen.
"""

import argparse
import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import machine

from plm_jax import config
from plm_jax.config import files as pages
from plm_jax.config import overrides
from plm_jax.data import vocabularies
from plm_jax.data.reader import Reader
from plm_jax.data.vocabularies import sentences, training

ROOT = pathlib.Path(__file__).parents[1]
CORPUS = ROOT / "plm_jax/data/corpora/sotu.jsonl.gz"
CORES = len(os.sched_getaffinity(0))
RUNNERS = {"local": [], "beam": ["--runner=beam", "--", f"--direct_num_workers={CORES}"]}
# By kind of vocabulary the files of its spec and its special ids; 4,096 pieces each but GPT-2's, which comes along.
KINDS = {
    "sentencepiece": ("sentencepiece:{0}/v.model", {"pad": 0, "eos": 1, "unk": 2}),
    "byte_level_bpe": ("bpe:{0}/vocab.json,{0}/merges.txt", {"eos": 0}),
    "wordpiece": ("wordpiece:{0}/vocab.txt", {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "eos": 3, "mask": 4}),
    "gpt2": (f"bpe:{ROOT}/plm_jax/data/gpt2/vocab.json,{ROOT}/plm_jax/data/gpt2/merges.txt", {"eos": 50256}),
}
PIECES = 4096
SOURCE = "webtext"
ROWS = 64


def addresses() -> list[str]:
    """The texts that come with the package."""
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def section(kind: str, folder: pathlib.Path) -> config.VocabularyConfig:
    """The vocabulary of a kind, made if its files are not there."""
    spec, specials = KINDS[kind]
    found = config.VocabularyConfig(spec.format(folder), **specials)
    if not all(map(os.path.exists, vocabularies.files(found.spec))):
        training.train(addresses()[::2], dataclasses.replace(found, train_size=PIECES))
    return found


def bare(vocabulary: vocabularies.Vocabulary, texts: list[str]) -> float:
    """Megabytes a second of the library's own tokenizer."""
    began = time.perf_counter()
    for begin in range(0, len(texts), 256):
        batch = texts[begin : begin + 256]
        if isinstance(vocabulary, vocabularies.SentencePiece):
            vocabulary.processor.encode(batch, num_threads=CORES)
        else:
            for encoded in vocabulary.tokenizer.encode_batch_fast(batch):
                _ = encoded.ids
    return sum(len(text.encode("utf-8")) for text in texts) / 1e6 / (time.perf_counter() - began)


def write_text(folder: pathlib.Path, num_bytes: int, num_files: int, shape: str) -> int:
    """Writes JSON lines with so much text; gives the bytes of the texts."""
    speeches = addresses()
    if shape == "sentences":
        speeches = [part.strip() for speech in speeches for part in sentences.split(speech) if part.strip()]
    total = 0
    files = [open(folder / f"{i:03d}.jsonl", "w", encoding="utf-8") for i in range(num_files)]  # noqa: SIM115
    for document in itertools.count():
        if total >= num_bytes:
            break
        copy, number = divmod(document, len(speeches))
        title = f"Copy {copy} of address {number}.\n\n" if shape == "addresses" else f"{copy}: "
        text = title + speeches[number]
        files[document % num_files].write(json.dumps({"text": text}) + "\n")
        total += len(text.encode("utf-8"))
    for file in files:
        file.close()
    return total


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from tree(int(child))
    except OSError:
        return


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: resident at most so far, anonymous now; nothing of one that has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    found = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in lines)
        if "kB" in value
    }
    return {"resident": found.get("VmHWM", 0), "anonymous": found.get("RssAnon", 0)}


def watched(command: list[str]) -> dict:
    """Runs a command; its seconds and, of its processes with more than 50 MB, the most memory."""
    peaks: dict[int, dict[str, int]] = {}
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)

    def sample() -> None:
        while process.poll() is None:
            for pid in tree(process.pid):
                before = peaks.setdefault(pid, {"resident": 0, "anonymous": 0})
                peaks[pid] = before | {kind: max(before[kind], size) for kind, size in memory(pid).items()}
            time.sleep(0.1)

    thread = threading.Thread(target=sample)
    thread.start()
    status = process.wait()
    seconds = time.perf_counter() - began
    thread.join()
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    largest = sorted(peaks.values(), key=lambda peak: -peak["resident"])
    megabytes = [{kind: round(size / 1e6) for kind, size in peak.items()} for peak in largest]
    return {"seconds": round(seconds, 1), "megabytes": [peak for peak in megabytes if peak["resident"] > 50]}


def digest(folder: pathlib.Path) -> str:
    """A hash of all files of a cache."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            found.update(str(path.relative_to(folder)).encode() + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def read(batches: int, changes: list[str]) -> None:
    """Reads batches of GPT-2's config with overrides."""
    page, given = pages.load(f"{ROOT}/configs/gpt2.py"), [tuple(change.split("=", 1)) for change in changes]
    tree = overrides.apply(page.config().to_dict(), [("train.batch_size", ROWS), *given], config.Run)
    for _ in itertools.islice(Reader(config.reader_config(config.resolve(tree, page.file))).batches(0), batches):
        pass


def main() -> None:
    """Parses the flags and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=150)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--runners", nargs="+", choices=RUNNERS, default=list(RUNNERS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS)[:3])
    parser.add_argument("--shape", choices=["addresses", "sentences"], default="addresses", help="of a document")
    parser.add_argument("--tiny", action="store_true", help="0.2 MB, two files, two batches")
    parser.add_argument("--read", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.batches, arguments.read)
        return
    if arguments.tiny:
        arguments.megabytes, arguments.files, arguments.batches = 0.2, 2, 2
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    result = {"benchmark": "prepare", "machine": machine.describe(), "cores": CORES}
    result |= {"files": arguments.files, "documents": arguments.shape}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").mkdir()
        num_bytes = write_text(folder / "text", int(arguments.megabytes * 1e6), arguments.files, arguments.shape)
        result["megabytes_of_text"] = round(num_bytes / 1e6, 1)
        result["kinds"] = {kind: measure(kind, folder, num_bytes, arguments.runners) for kind in arguments.kinds}
        overrides = settings(section(arguments.kinds[-1], folder), folder, arguments.kinds[-1], arguments.runners[-1])
        command = [sys.executable, __file__, f"--batches={arguments.batches}", "--read", *overrides]
        result["reading"] = {"batches": arguments.batches} | watched(command)
    print(json.dumps(result, indent=2))


def settings(spec: config.VocabularyConfig, folder: pathlib.Path, kind: str, runner: str) -> list[str]:
    """What of GPT-2's config is another: the text, where the cache goes, and the vocabulary."""
    given = {name: getattr(spec, name) for name in config.SPECIALS if getattr(spec, name) is not None}
    vocabulary = {"spec": spec.spec, **given}
    return [
        f"data.sources.{SOURCE}.path={folder}/text/*.jsonl",
        f"data.cache_dir={folder}/{kind}-{runner}",
        *(f"vocabulary.{name}={value}" for name, value in vocabulary.items()),
    ]


def measure(kind: str, folder: pathlib.Path, num_bytes: int, runners: list[str]) -> dict:
    """Rates with a kind of vocabulary: bare, by each runner, and bare again."""
    spec = section(kind, folder)
    vocabulary = vocabularies.load_plain(spec)
    texts = addresses()
    rates, found, digests = [bare(vocabulary, texts)], {}, set()
    for runner in runners:
        overrides = [f"--config.{override}" for override in settings(spec, folder, kind, runner)]
        verb = [sys.executable, "-m", "plm_jax", "prepare", "--config=configs/gpt2.py:small", *overrides]
        done = watched([*verb, *RUNNERS[runner]])
        found[runner] = done | {"megabytes_per_second": round(num_bytes / 1e6 / done["seconds"], 2)}
        digests.add(digest(folder / f"{kind}-{runner}" / SOURCE))
        rates.append(bare(vocabulary, texts))
    rate = max(rates)
    for done in found.values():
        done["ratio"] = round(done["megabytes_per_second"] / rate, 3)
    result = {"bare_megabytes_per_second": round(rate, 2), "runners": found, "caches_are_the_same": len(digests) == 1}
    print(kind, json.dumps(result), file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    main()
