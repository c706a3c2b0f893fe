"""Damage to `checkpoints/best` and to converted directories, and whether every reader reports it.

    python benchmarks/faults_best.py --cases=200 --seed=0

Each case changes a copy of one of the two: it flips a bit or changes a byte of a file, cuts, grows, removes, adds or
links a file, replaces a file with another folder's, swaps two files, or replaces all of `best`. Then `plm_jax.load`,
`convert`, and for `best` also `checkpoints verify` and `pretrain`, must each report it in one line. The outcome is
`silent` if one of them does not. Prints JSON.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from faults_case import Row, count  # noqa: E402
from faults_case import row as row_of  # noqa: E402

from tests.support import moods  # noqa: E402

# Longest error line that a person can read.
_LINE = 1000


class Base(NamedTuple):
    """Good folders, whose copies the cases change.

    Attributes:
      config: config of the run.
      run: directory of a finished run that keeps its best weights.
      converted: a converted directory.
      replacements: folders by campaign whose files may replace those of a good folder.
    """

    config: Any
    run: pathlib.Path
    converted: pathlib.Path
    replacements: dict[str, list[pathlib.Path]]


def make_base(folder: pathlib.Path, steps: int = 4) -> Base:
    """Trains a run of a few steps in a folder and converts its weights."""
    import dataclasses

    from plm_jax import config
    from plm_jax.runs import checkpoint_formats, loop, preparation, transfer

    moods.write(folder)
    train = dataclasses.replace(moods.RUN.train, epochs=None, steps=steps)
    page = config.resolve(config.to_config_dict(dataclasses.replace(moods.RUN, train=train)), str(folder / "moods.py"))
    run = transfer.resolve(page, str(folder / "encoder"))
    with contextlib.redirect_stdout(sys.stderr):
        preparation.prepare(run, show_progress=False)
    loop.pretrain(run, str(folder / "run"))
    best = folder / "run/checkpoints/best"
    other = replica(best, folder / "other/checkpoints/best", run_id="0123456789abcdef")
    selected = {"by": run.evaluation.select, "value": 9.0, "history": [[0, 9.0]]}
    earlier = replica(best, folder / "earlier/checkpoints/best", step=0, selected=selected)
    for name, path in (("converted", best), ("other-converted", folder / "run")):
        checkpoint_formats.convert(str(path), str(folder / name), "plm_jax")
    newest = folder / f"run/checkpoints/{steps}"
    replacements = {"best": [other, earlier, newest], "converted": [folder / "other-converted", folder / "encoder"]}
    return Base(run, folder / "run", folder / "converted", replacements)


def replica(best: pathlib.Path, target: pathlib.Path, **meta: Any) -> pathlib.Path:
    """Copies best weights, sealed as another run, or the same run at another step, would have sealed them."""
    from plm_jax.common import sealing

    shutil.copytree(best, target)
    path = target / "meta/metadata"
    content = json.loads(path.read_text()) | meta
    path.write_text(json.dumps(content))
    manifest = sealing.read(str(best))
    described = {name: manifest[name] for name in manifest if name != "files"}
    sealing.seal(str(target), described | {"step": content["step"]})
    return target


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _flip_bit(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def _change_byte(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    at = rng.randrange(len(content))
    content[at] = (content[at] + rng.randrange(1, 256)) % 256
    path.write_bytes(content)


def _cut(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: rng.randrange(size)] if size else b"x")


def _grow(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 100)))


def _remove(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    path.unlink()


def _add(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    names = ("new", ".hidden", "manifest-part-1.json", "model-00002-of-00002.safetensors")
    (path.parent / rng.choice(names)).write_bytes(rng.randbytes(10))


def _link(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    copy = folder.parent / "linked"
    path.rename(copy)
    path.symlink_to(copy)


def _swap(folder: pathlib.Path, path: pathlib.Path, rng: random.Random) -> None:
    other = rng.choice([other for other in _files(folder) if other.read_bytes() != path.read_bytes()])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


DAMAGES: list[Callable[[pathlib.Path, pathlib.Path, random.Random], None]] = [
    *[_flip_bit, _change_byte, _cut, _grow, _remove, _add, _link, _swap]
]


def damage(folder: pathlib.Path, replacements: list[pathlib.Path], rng: random.Random) -> str:
    """Damages a folder and returns a description; half of the cases flip a bit or change a byte.

    Args:
      folder: folder of best weights, or a converted directory. Only the former can be replaced as a whole, because
        nothing records which conversion a converted directory is.
      replacements: folders that provide files to replace.
    """
    path = rng.choice(_files(folder))
    make = rng.choice(DAMAGES[:2] if rng.random() < 0.5 else [*DAMAGES[2:], None, None])
    if make:
        make(folder, path, rng)
        return f"{make.__name__[1:]} {path.relative_to(folder)}"
    other = rng.choice(replacements)
    shared = [path for path in _files(folder) if (other / path.relative_to(folder)).exists()]
    shared = [path for path in shared if (other / path.relative_to(folder)).read_bytes() != path.read_bytes()]
    if folder.name != "best" or (shared and rng.random() < 0.5):
        path = rng.choice(shared)
        shutil.copy(other / path.relative_to(folder), path)
        return f"{path.relative_to(folder)} of {other.parts[-3:]}"
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    return f"exchanged for {other}"


def _is_line(text: str) -> bool:
    return "\n" not in text.strip() and 0 < len(text) < _LINE


def _refuses(read: Callable[[], Any]) -> bool:
    from plm_jax.common.errors import UserError

    try:
        read()
    except UserError as error:
        return _is_line(str(error))
    return False


def readers_of(base: Base, folder: pathlib.Path, scratch: pathlib.Path) -> dict[str, Callable[[], bool]]:
    """Returns the readers of best weights or a converted directory by name; each returns whether it reported."""
    import plm_jax
    from plm_jax.runs import checkpoint_formats, checkpoint_lists, loop

    def pretrain() -> bool:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            loop.pretrain(base.config, str(folder.parent.parent))
        lines = [line for line in printed.getvalue().splitlines() if line.startswith("checkpoints/best ")]
        return len(lines) == 1 and _is_line(lines[0])

    def verify() -> bool:
        found = checkpoint_lists.entries(str(folder.parent.parent), verify=True)
        return [entry.name for entry in found if entry.damage] == ["best"]

    readers = {
        "load": lambda: _refuses(lambda: plm_jax.load(str(folder))),
        "convert": lambda: _refuses(lambda: checkpoint_formats.convert(str(folder), str(scratch / "new"), "plm_jax")),
    }
    return readers | ({"verify": verify, "pretrain": pretrain} if folder.name == "best" else {})


def try_case(base: Base, campaign: str, scratch: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Damages a copy and runs every reader on it; returns the outcome and a description."""
    if campaign == "best":
        folder = shutil.copytree(base.run, scratch / "run") / "checkpoints/best"
    else:
        folder = shutil.copytree(base.converted, scratch / "case")
    what = damage(folder, base.replacements[campaign], rng)
    names = list(readers := readers_of(base, folder, scratch))
    if what.endswith("earlier/checkpoints/best"):  # Intact, and the run's: only a resuming run knows of better ones.
        names = ["pretrain"]
    try:
        silent = [name for name in names if not readers[name]()]
    except Exception as error:
        return "traceback", f"{what}: {type(error).__name__}: {error}"
    return ("silent" if silent else "handled"), f"{what}: {', '.join(silent)}"


def campaigns(number: int, seed: int) -> list[Row]:
    """Runs `number` cases, half for each campaign; the same seed makes the same cases."""
    counts = {name: collections.Counter() for name in ("best", "converted")}
    with tempfile.TemporaryDirectory() as temporary:
        base = make_base(pathlib.Path(temporary))
        for case in range(number):
            campaign = list(counts)[case % 2]
            with tempfile.TemporaryDirectory(dir=temporary) as scratch:
                outcome, what = try_case(base, campaign, pathlib.Path(scratch), random.Random(f"{seed} {case}"))
            count(counts[campaign], outcome, f"{campaign}, case {case}: {what}")
    return [row_of(f"files: {campaign}", outcomes) for campaign, outcomes in counts.items()]


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    arguments = parser.parse_args()
    rows = campaigns(arguments.cases, arguments.seed)
    print(json.dumps([one._asdict() for one in rows], indent=2))
    sys.exit(any(one.handled < one.tried for one in rows))
