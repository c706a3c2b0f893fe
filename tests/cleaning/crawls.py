"""Writers of small crawls."""

import gzip
import hashlib
import json
import pathlib
import random

_NAMES = "river mountain teacher garden winter station letter captain doctor harbour market village music paper"
_VERBS = "crossed painted followed described remembered repaired visited measured carried watched opened closed"
NAMES, VERBS = _NAMES.split(), _VERBS.split()


def sentence(rng: random.Random) -> str:
    """Returns a random English sentence of eight words, one of some millions."""
    a, b, c, d = (rng.choice(NAMES) for _ in range(4))
    return f"The {a} of the {b} {rng.choice(VERBS)} every {c} near {rng.randrange(1900, 2000)} and a {d}."


def warc_record(url: str, body: bytes, kind: str = "conversion", date: str = "2019-04-24T09:23:58Z") -> bytes:
    """Returns a record in Common Crawl's format. An empty `url` or `date` omits its line."""
    types = {"conversion": "text/plain", "response": "application/http; msgtype=response", "warcinfo": "text/plain"}
    lines = ["WARC/1.0", f"WARC-Type: {kind}", f"WARC-Target-URI: {url}", f"WARC-Date: {date}"]
    lines += ["WARC-Record-ID: <urn:uuid:0>", f"Content-Type: {types[kind]}", f"Content-Length: {len(body)}"]
    nonempty = [line for line in lines if not line.endswith(": ")]
    return "\r\n".join(nonempty).encode() + b"\r\n\r\n" + body + b"\r\n\r\n"


def response(html: bytes, status: str = "200 OK", kind: str = "text/html; charset=utf-8") -> bytes:
    """Returns the body of a `response` record."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(html)}\r\n\r\n".encode() + html


def write_archive(path, records: list[bytes]) -> str:
    """Writes each record as a separate gzip member, like crawls."""
    path.write_bytes(b"".join(map(gzip.compress, [warc_record("", b"software: none", "warcinfo"), *records])))
    return str(path)


def write_json(path, rows: list[dict]) -> str:
    """Writes compressed JSON Lines."""
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return str(path)


def read_lines(folder, pattern: str) -> list[dict]:
    """Returns all rows of a folder's files."""
    return [
        json.loads(line)
        for path in sorted(folder.glob(pattern))
        for line in gzip.decompress(path.read_bytes()).decode().splitlines()
    ]


def write_similar_pages(folder: pathlib.Path, files: int, pages_per_file: int) -> None:
    """Writes JSON Lines whose pages share lines, and of which a tenth are nearly copies of others."""
    rng = random.Random(7)
    shared = [sentence(rng) for _ in range(50)]
    texts = []
    for number in range(files):
        rows = []
        for page in range(pages_per_file):
            lines = [" ".join(sentence(rng) for _ in range(3)) for _ in range(10)] + rng.sample(shared, 2)
            if texts and rng.random() < 0.1:
                # A sentence less, and lines of other sentences, so that only MinHash sees the copy.
                lines = [" ".join(rng.choice(texts).replace("\n", " ").split(" ")[9:])]
            texts.append("\n".join(lines))
            url = f"http://site{rng.randrange(100)}.org/{number}/{page}"
            rows.append({"url": url, "text": texts[-1], "timestamp": f"2019-04-{page % 28 + 1:02}"})
        write_json(folder / f"{number}.jsonl.gz", rows)


def sha256(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
