"""Rate of `prepare`, compared with bare tokenizers, and the memory of every process. Prints one JSON object.

    python benchmarks/prepare.py                     # 150 MB per kind of vocabulary: eight minutes on two cores
    python benchmarks/prepare.py --megabytes=1000 --kinds=gpt2      # memory
    taskset -c 0 python benchmarks/prepare.py --runners one_pass    # on one core
    python benchmarks/prepare.py --tiny              # a run of seconds

The text repeats the State of the Union addresses that come with the package, each copy with another title, as JSON
lines. The vocabularies have 4,096 pieces, trained on every other address, or are GPT-2's. The bare tokenizers have the
texts in memory and the same cores: SentencePiece's `encode` with one thread per core, and Hugging Face's
`encode_batch_fast`, which returns no offsets, for byte-level BPE and WordPiece. `ratio` is the rate of `prepare`, from
the start to the end of its process, over theirs; they run in turn, and the bare ones again at the end. The caches of
all runners must be equal to the byte. Then batches of 64 rows of 1,024 tokens are read. Memory is sampled ten times per
second over the tree of processes (Linux): `resident` is the kernel's peak of a process and includes pages of mapped
files, `anonymous` its largest sample, and `tree_megabytes` the largest sum of the proportional sizes of all processes.
"""

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

import bench

from plm_jax import config
from plm_jax.common import overrides
from plm_jax.config import files as pages
from plm_jax.data import vocabularies
from plm_jax.data.reader import Reader
from plm_jax.data.vocabularies import sentences, training

CORPUS = bench.ROOT / "plm_jax/data/corpora/sotu.jsonl.gz"
CORES = len(os.sched_getaffinity(0))
RUNNERS = {
    "one_pass": [],
    "local": ["--runner=local", "--", f"--workers={CORES}"],
    "beam": ["--runner=beam", "--", f"--direct_num_workers={CORES}"],
}
GPT2 = bench.ROOT / "plm_jax/data/gpt2"
# Spec and special ids by kind of vocabulary; 4,096 pieces each, except GPT-2's, which comes with the package.
KINDS = {
    "sentencepiece": ("sentencepiece:{0}/v.model", {"pad": 0, "eos": 1, "unk": 2}),
    "byte_level_bpe": ("bpe:{0}/vocab.json,{0}/merges.txt", {"eos": 0}),
    "wordpiece": ("wordpiece:{0}/vocab.txt", {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "eos": 3, "mask": 4}),
    "gpt2": (
        f"bpe:{bench.ROOT}/plm_jax/data/gpt2/vocab.json,{bench.ROOT}/plm_jax/data/gpt2/merges.txt",
        {"eos": 50256},
    ),
}
PIECES = 4096
SOURCE = "webtext"
ROWS = 64


def addresses() -> list[str]:
    """Returns the texts that come with the package."""
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def section(kind: str, folder: pathlib.Path) -> config.VocabularyConfig:
    """Returns the vocabulary of a kind, and trains it if its files are missing."""
    spec, specials = KINDS[kind]
    vocabulary = config.VocabularyConfig(spec.format(folder), **specials)
    if not all(map(os.path.exists, vocabularies.files(vocabulary.spec))):
        training.train(addresses()[::2], dataclasses.replace(vocabulary, train_size=PIECES))
    return vocabulary


def bare(vocabulary: vocabularies.Vocabulary, texts: list[str]) -> float:
    """Returns the megabytes per second of the library's tokenizer."""
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
    """Writes JSON lines with at least `num_bytes` of text; returns the bytes of the texts."""
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
    """Yields a process and its descendants."""
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from tree(int(child))
    except OSError:
        return


def memory(pid: int) -> dict[str, int]:
    """Returns the bytes of a process, empty if it has ended: peak resident, current anonymous, current proportional."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        lines += pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    sizes = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in lines)
        if "kB" in value
    }
    return {"resident": sizes.get("VmHWM", 0), "anonymous": sizes.get("RssAnon", 0), "shared": sizes.get("Pss", 0)}


def watched(command: list[str]) -> dict:
    """Runs a command. Returns its seconds, its CPU seconds, and the peak memory of all processes and of large ones."""
    peaks: dict[int, dict[str, int]] = {}
    totals = [0]
    before_all = os.times()
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=bench.ROOT, stdout=sys.stderr)

    def sample() -> None:
        while process.poll() is None:
            total = 0
            for pid in tree(process.pid):
                sizes = memory(pid)
                total += sizes.pop("shared", 0)
                before = peaks.setdefault(pid, {"resident": 0, "anonymous": 0})
                peaks[pid] = before | {kind: max(before[kind], size) for kind, size in sizes.items()}
            totals.append(total)
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
    after_all = os.times()
    cpu = after_all.children_user + after_all.children_system - before_all.children_user - before_all.children_system
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "tree_megabytes": round(max(totals) / 1e6),
        "megabytes": [peak for peak in megabytes if peak["resident"] > 50],
    }


def digest(folder: pathlib.Path) -> str:
    """Returns a hash of all files of a cache."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            total.update(str(path.relative_to(folder)).encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def read(batches: int, changes: list[str]) -> None:
    """Reads batches of GPT-2's config with overrides."""
    page, fields = pages.load(f"{bench.ROOT}/configs/gpt2.py"), [tuple(change.split("=", 1)) for change in changes]
    tree = overrides.apply(page.config().to_dict(), [("train.batch_size", ROWS), *fields], config.Run)
    for _ in itertools.islice(Reader(config.reader_config(config.resolve(tree, page.file))).batches(0), batches):
        pass


def run(
    megabytes: float = 150.0,
    files: int = 8,
    batches: int = 500,
    runners: tuple[str, ...] = tuple(RUNNERS),
    kinds: tuple[str, ...] = tuple(KINDS)[:3],
    shape: str = "addresses",
    tiny: bool = False,
) -> dict:
    """Prepares the text with each kind of vocabulary, and reads batches of the last cache.

    Args:
      megabytes: size of the text.
      files: number of files of the text.
      shape: content of a document.
      tiny: 0.2 MB, two files, two batches.
    """
    if tiny:
        megabytes, files, batches = 0.2, 2, 2
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").mkdir()
        num_bytes = write_text(folder / "text", int(megabytes * 1e6), files, shape)
        results = {kind: measure(kind, folder, num_bytes, list(runners)) for kind in kinds}
        changes = settings(section(kinds[-1], folder), folder, kinds[-1], runners[-1])
        reading = {"batches": batches} | watched(bench.command(read, batches, changes))
    return {"cores": CORES, "megabytes_of_text": round(num_bytes / 1e6, 1), "kinds": results, "reading": reading}


def settings(spec: config.VocabularyConfig, folder: pathlib.Path, kind: str, runner: str) -> list[str]:
    """Returns the changes of GPT-2's config: text, cache folder and vocabulary."""
    ids = {name: getattr(spec, name) for name in config.SPECIALS if getattr(spec, name) is not None}
    vocabulary = {"spec": spec.spec, **ids}
    return [
        f"data.sources.{SOURCE}.path={folder}/text/*.jsonl",
        f"data.cache_dir={folder}/{kind}-{runner}",
        *(f"vocabulary.{name}={value}" for name, value in vocabulary.items()),
    ]


def measure(kind: str, folder: pathlib.Path, num_bytes: int, runners: list[str]) -> dict:
    """Returns the rates with a kind of vocabulary: bare, by each runner, and bare again."""
    spec = section(kind, folder)
    vocabulary = vocabularies.load_plain(spec)
    texts = addresses()
    rates, results, digests = [bare(vocabulary, texts)], {}, set()
    for runner in runners:
        overrides = [f"--config.{override}" for override in settings(spec, folder, kind, runner)]
        verb = [sys.executable, "-m", "plm_jax", "prepare", "--config=configs/gpt2.py:small", *overrides]
        done = watched([*verb, *RUNNERS[runner]])
        results[runner] = done | {"megabytes_per_second": round(num_bytes / 1e6 / done["seconds"], 2)}
        digests.add(digest(folder / f"{kind}-{runner}" / SOURCE))
        rates.append(bare(vocabulary, texts))
    rate = max(rates)
    for done in results.values():
        done["ratio"] = round(done["megabytes_per_second"] / rate, 3)
    result = {"bare_megabytes_per_second": round(rate, 2), "runners": results, "caches_are_the_same": len(digests) == 1}
    bench.log(f"{kind} {result}")
    return result


if __name__ == "__main__":
    bench.main(run, runners=tuple(RUNNERS), kinds=tuple(KINDS), shape=("addresses", "sentences"))
