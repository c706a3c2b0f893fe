"""Campaigns of damage to `checkpoints/best` and to converted directories, and whether every reader reports it.

Each case damages a copy of one of the two (`faults_damage.damage`). Then `plm_jax.load`, `convert`, and for `best` also
`checkpoints verify` and `pretrain`, must each report it in one line. The outcome is `silent` if one of them does not.
"""

import contextlib
import dataclasses
import functools
import io
import json
import pathlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import faults_damage

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from faults_case import Campaign, child, to_its_end  # noqa: E402

# Longest error line that a person can read, and the seconds of a case.
_LINE, SECONDS = 1000, 120.0


class Base(NamedTuple):
    """Good files, whose copies the cases change: a finished run that keeps its best weights, and a converted directory.

    Attributes:
      folder: folder with all of them.
    """

    folder: pathlib.Path

    @property
    def run(self) -> pathlib.Path:
        """Directory of the run."""
        return self.folder / "run"

    @property
    def config(self) -> Any:
        """Config of the run."""
        from plm_jax import config
        from plm_jax.runs import run_directory

        return config.from_dict(run_directory.read(str(self.run))["config"])

    def copy(self, campaign: str, target: pathlib.Path) -> pathlib.Path:
        """Copies the best weights, with their run, or the converted directory; returns the folder to damage."""
        if campaign == "best":
            return shutil.copytree(self.run, target / "run") / "checkpoints/best"
        return shutil.copytree(self.folder / "converted", target / "case")

    def replacements(self, campaign: str) -> list[pathlib.Path]:
        """Returns the folders whose files may replace those of a good one."""
        if campaign == "converted":
            return [self.folder / "other-converted", self.folder / "encoder"]
        newest = max(int(path.name) for path in (self.run / "checkpoints").iterdir() if path.name.isdecimal())
        replicas = [self.folder / name / "checkpoints/best" for name in ("other", "earlier")]
        return [*replicas, self.run / "checkpoints" / str(newest)]


def make_base(folder: pathlib.Path, steps: int = 4) -> Base:
    """Trains a run of a few steps in a folder and converts its weights."""
    from plm_jax import config
    from plm_jax.runs import checkpoint_formats, loop, preparation, transfer
    from tests.support import moods

    moods.write(folder)
    train = dataclasses.replace(moods.RUN.train, epochs=None, steps=steps)
    page = config.resolve(config.to_config_dict(dataclasses.replace(moods.RUN, train=train)), str(folder / "moods.py"))
    run = transfer.resolve(page, str(folder / "encoder"))
    with contextlib.redirect_stdout(sys.stderr):
        preparation.prepare(run, show_progress=False)
    loop.pretrain(run, str(folder / "run"))
    best = folder / "run/checkpoints/best"
    replica(best, folder / "other/checkpoints/best", run_id="0123456789abcdef")
    selected = {"by": run.evaluation.select, "value": 9.0, "history": [[0, 9.0]]}
    replica(best, folder / "earlier/checkpoints/best", step=0, selected=selected)
    for name, path in (("converted", best), ("other-converted", folder / "run")):
        checkpoint_formats.convert(str(path), str(folder / name), "plm_jax")
    return Base(folder)


def replica(best: pathlib.Path, target: pathlib.Path, **meta: Any) -> None:
    """Copies best weights, sealed as another run, or the same run at another step, would have sealed them."""
    from plm_jax.common import sealing

    shutil.copytree(best, target)
    content = faults_damage.change_json(target / "meta/metadata", lambda tree: tree.update(meta) or tree)
    manifest = {name: value for name, value in sealing.read(str(best)).items() if name != "files"}
    sealing.seal(str(target), manifest | {"step": content["step"]})


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
        entries = checkpoint_lists.entries(str(folder.parent.parent), verify=True)
        return [entry.name for entry in entries if entry.damage] == ["best"]

    readers = {
        "load": lambda: _refuses(lambda: plm_jax.load(str(folder))),
        "convert": lambda: _refuses(lambda: checkpoint_formats.convert(str(folder), str(scratch / "new"), "plm_jax")),
    }
    return readers | ({"verify": verify, "pretrain": pretrain} if folder.name == "best" else {})


def try_case(base: Base, campaign: str, scratch: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Damages a copy and runs every reader on it; returns the outcome and a description."""
    folder = base.copy(campaign, scratch)
    # Nothing records which conversion a converted directory is: an exchanged one is good.
    is_replaceable = campaign == "best"
    what = faults_damage.damage(folder, base.replacements(campaign), rng, is_replaceable)
    readers = readers_of(base, folder, scratch)
    if what.endswith("earlier/checkpoints/best"):  # Intact, and the run's: only a resuming run knows of better ones.
        readers = {"pretrain": readers["pretrain"]}
    try:
        silent = [name for name, reports in readers.items() if not reports()]
    except Exception as error:
        return "traceback", f"{what}: {type(error).__name__}: {error}"
    return ("silent" if silent else "handled"), f"{what}: {', '.join(silent)}"


def _base(root: pathlib.Path) -> Base:
    """Makes the good files in a child process: this one must not start JAX's threads."""
    from tests.support import verbs

    verbs.import_libraries()
    (root / "base").mkdir()
    to_its_end(lambda: make_base(root / "base"), 5 * SECONDS, root / "log")
    return Base(root / "base")


def _case(campaign: str, base: Base, number: int, rng: random.Random) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(dir=base.folder.parent) as scratch:
        run = functools.partial(try_case, base, campaign, pathlib.Path(scratch), rng)
        outcome, output = child(lambda: print(json.dumps(run())), SECONDS, base.folder.parent / "log")
    return json.loads(output.splitlines()[-1]) if outcome == "ended" else (outcome, output)


CAMPAIGNS = [
    Campaign(f"weights: {campaign}", 100, _base, functools.partial(_case, campaign))
    for campaign in ("best", "converted")
]
