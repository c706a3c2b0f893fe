"""Generators of wrong values for every command and every file that it reads, and the runner of these cases.

A generator copies valid files and corrupts one file or one flag. A case passes if the command exits with status 0, or
with status 2 and one error line, takes at most 10 s longer than the valid command, and uses at most 1 GB more memory
than at its start. Commands run in children of a process that has imported the libraries.
"""

import functools
import gzip
import json
import os
import pathlib
import random
import runpy
import shutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import faults_damage
import faults_data_corpora as corpora
import faults_files_cases as files
from faults_case import Campaign, Ended, forked, to_its_end

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import moods, tiny, verbs  # noqa: E402

# Seconds that a case may take longer than the good command of its verb.
SECONDS = 10.0
# Limit in seconds for a good command that compiles for the first time.
_FIRST = 120.0
_SWEEP = 'base = "tiny.py:plain"\n\ndef overrides():\n    yield "a", {"train.steps": 2}\n'
_MINE = "from plm_jax import config\n\nX = 1\n"
_PAGE = {"url": "http://a.org/1", "timestamp": "2019-04-01", "text": "All is well in this town, and it is quiet.\n" * 9}


class Command(NamedTuple):
    """A command with its arguments, a description of the fault, and whether status 0 would be wrong."""

    what: str
    verb: str
    arguments: tuple[str, ...]
    is_bad: bool = False


Make = Callable[[pathlib.Path, random.Random], Command]


def good(folder: pathlib.Path) -> dict[str, Command]:
    """Returns one call of each command that succeeds on good files."""
    at = str(folder)
    config, run = f"--config={at}/tiny.py", f"{at}/run"
    commands = {
        "config": (config,),
        "prepare": (config, f"--output={at}/new-cache"),
        "pretrain": (config, f"--workdir={run}", "--config.train.steps=7"),
        "finetune": (f"--config={at}/moods.py", f"--checkpoint={at}/encoder", f"--workdir={at}/tuned"),
        "evaluate": (f"--checkpoint={run}", f"--output={at}/figures.json"),
        "generate": (f"--checkpoint={run}", f"--prompts={at}/prompts.txt", "--max_new_tokens=4"),
        "convert": (f"--source={run}", f"--target={at}/converted-again"),
        "plan": (config, "--topology=none"),
        "sweep": (f"--sweep={at}/sweep.py", f"--workdir={at}/swept"),
        "report": (f"--workdirs={at}/sweep", f"--output={at}/report.html"),
        "checkpoints": ("verify", run),
        "examples": (f"--workdir={run}", "--step=2"),
        "replay": (run, "--step=4"),
        "status": (run,),
        "clean": (f"--input={at}/crawl/*", f"--output={at}/cleaned", "--flavor=en.noclean", "--set=language=None"),
    }
    return {verb: Command("good", verb, arguments) for verb, arguments in commands.items()}


def make_base(folder: pathlib.Path) -> None:
    """Writes the good files that no command writes: configs, corpora, labeled rows, a sweep and a crawl."""
    folder.mkdir(parents=True)
    tiny.write(folder)
    moods.write(folder)
    (folder / "sweep.py").write_text(_SWEEP)
    (folder / "mine.py").write_text(_MINE)
    (folder / "prompts.txt").write_text("The sea\nThe ship of the captain\n")
    (folder / "crawl").mkdir()
    with gzip.open(folder / "crawl" / "pages.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(_PAGE | {"url": f"http://a{i}.org/{i}"}) + "\n" for i in range(20))
    pairs = [{"inputs": f"the {i}", "targets": "sea" if i % 2 else "land", "label": i % 2} for i in range(60)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def finish_base(folder: pathlib.Path) -> None:
    """Adds the files that commands write: a cache, a run, its evaluation, a sweep of two runs, a conversion."""
    at = str(folder)
    for verb, arguments in (
        ("prepare", (f"--config={at}/tiny.py",)),
        ("pretrain", (f"--config={at}/tiny.py", f"--workdir={at}/run")),
        ("evaluate", (f"--checkpoint={at}/run",)),
        ("convert", (f"--source={at}/run", f"--target={at}/converted")),
    ):
        ended = run(Command("base", verb, arguments), folder, _FIRST)
        if ended.status:
            raise RuntimeError(f"{verb} fails on good files: {ended.errors}")
    sweep = folder / "sweep"
    for name in ("a", "b"):
        shutil.copytree(folder / "run", sweep / name, ignore=shutil.ignore_patterns("checkpoints", "events*"))
    metrics = {"a/loss": 2.5, "a/accuracy": 0.5}
    rows = [
        {"name": name, "seed": 1, "workdir": name, "overrides": {"train.steps": 6}, "error": None, "minutes": 0.5}
        | {"metrics": metrics}
        for name in ("a", "b")
    ]
    baselines = [{"run": "a", "metric": "a/accuracy", "others": {"b": "b", "chance": 0.5, "loss": ["b", "a/loss"]}}]
    published = [{"run": name, "figures": {"GLUE": 80.0}, "source": "Table 1"} for name in ("a", "b")]
    tree = {
        "base": json.loads((folder / "run/config.json").read_text())["config"],
        "runs": rows,
        "baselines": baselines,
    }
    tree |= {"published": published, "compared": {"GLUE": ["a/accuracy"]}}
    (sweep / "sweep.json").write_text(json.dumps(tree))


def run(command: Command, folder: pathlib.Path, seconds: float, uses_cache: bool = True) -> Ended:
    """Runs a command in a child whose working directory is `folder`; JAX's compilation cache may be off."""

    def child() -> None:
        if not uses_cache:
            import jax

            jax.config.update("jax_enable_compilation_cache", False)
        os.chdir(folder)
        sys.argv = [f"plm_jax.cli.{command.verb}", *command.arguments]
        sys.path[0] = str(ROOT)
        runpy.run_module(f"plm_jax.cli.{command.verb}", run_name="__main__", alter_sys=True)

    return forked(child, seconds, folder.parent / "log")


def is_handled(command: Command, ended: Ended) -> bool:
    """Whether a case ended without an error, or with one error as its last line."""
    if "Traceback" in ended.errors or ended.status not in (0, 1, 2):
        return False
    errors = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
    if ended.status == 2:
        return len(errors) == 1 and ended.errors.rstrip("\n").endswith(errors[0]) and len(errors[0]) < 2000
    return not errors and (ended.status == 0 or command.verb == "status")


class Base:
    """The good files, made when cases need them, and the time of each command on them."""

    def __init__(self, root: pathlib.Path):
        self.root, self.folder = root, root / "base"
        self._seconds: dict[str, float] = {}
        import_libraries()
        to_its_end(lambda: make_base(self.folder), _FIRST, root / "log")  # JAX starts threads there.

    def fresh(self, name: str, make: Make | None = None) -> pathlib.Path:
        """Returns a copy of the good files, with a run and other programs' models if `make` needs them."""
        if make in _NEEDS_MODELS and not self.models.exists():
            to_its_end(lambda: files.make_bases(self.models), _FIRST, self.root / "log")
        if make not in _NEEDS_NO_RUN and not (self.folder / "run").exists():
            finish_base(self.folder)
        folder = self.root / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, symlinks=True)
        _relocate(folder, str(self.folder), str(folder))
        return folder

    @property
    def models(self) -> pathlib.Path:
        """Folder of good models of other programs."""
        return self.root / "models"

    def limit(self, verb: str) -> float:
        """Returns the seconds that a case of a command may take."""
        if verb not in self._seconds:
            command = good(self.root / "good")[verb]
            folder = self.fresh("good", None if verb in _READS_RUN or verb == "sweep" else number)
            if verb == "pretrain":  # A new run, of the model that the cases with wrong fields have.
                command = _override(folder, "everything", verb, "train.seed", "1")
            # Measured without the compilation cache, because a case may compile a different program.
            ended = run(command, folder, _FIRST, uses_cache=False)
            if ended.status:
                raise RuntimeError(f"{verb} fails on good files: {ended.errors}")
            self._seconds[verb] = ended.seconds
        return self._seconds[verb] + SECONDS


def _relocate(folder: pathlib.Path, before: str, after: str) -> None:
    """Rewrites paths in the files of a copy."""
    for path in folder.rglob("*.json"):
        text = path.read_text(errors="surrogateescape")
        if before in text and "checkpoints" not in path.parts:
            path.write_text(text.replace(before, after), errors="surrogateescape")


def import_libraries() -> None:
    """Imports the libraries that children need, and sets up a shared cache of compiled programs."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ["PYTHONPATH"] = str(ROOT)  # For processes that verbs start.
    verbs.import_libraries()


# Values that most flags and fields reject.
TEXTS = (
    *str.split(
        """
        nan inf -inf 1e400 -1 0 1e22 1e12 99999999999999999999 0.5 None true [] {} () {'a':1} kind \0 é = , ../.. /
        /dev/null /dev/zero no/such/file . s3://no-bucket/x file:/// -- - * ~
        """
    ),
    *("", " ", "[1, [2]]", "\ud800", "x" * 100_000, "9" * 5000, "(" * 500),
)
NUMBERS = tuple(str.split("nan inf -inf -1 0 1e300 1e22 1e12 1e9 -1e9 10000000 1e-300 1e-12 x"))
# Outside every number's range.
_NEVER = ("nan", "inf", "-inf", "1e300", "1e22", "x")
FLAGS = {
    "clean": "input output flavor set runner",
    "prepare": "config output from runner module",
    "pretrain": "config workdir from allow_changes refuse_damaged module",
    "finetune": "config checkpoint workdir seeds allow_changes module",
    "evaluate": "checkpoint tasks output shots seeds normalize balanced show limit stride harness include_path "
    "num_beams temperature module",
    "generate": "checkpoint prompt prompts output batch_size seed max_new_tokens min_new_tokens temperature top_k "
    "top_p num_beams length_penalty early_stopping no_repeat_ngram_size forced_bos_token_id forced_prefix "
    "stop_strings num_return_sequences decoding module",
    "convert": "source target format module",
    "plan": "config topology slices price output module",
    "sweep": "sweep workdir seeds launcher parallel run module",
    "report": "workdirs output png module",
    "checkpoints": "keep_last keep_every",
    "examples": "workdir step row document module",
    "replay": "step module",
    "status": "module",
    "config": "config module",
}


def _text(rng: random.Random, *more: str) -> str:
    """Draws a value of a flag, which cannot contain NUL."""
    return rng.choice((*TEXTS, *more)).replace("\0", "\x01")


def flag(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes a wrong flag: a wrong value, an unknown or missing flag, or an extra argument."""
    verb = rng.choice(list(FLAGS))
    arguments = good(folder)[verb].arguments
    name, value = rng.choice(FLAGS[verb].split()), _text(rng, *NUMBERS)
    rest = tuple(argument for argument in arguments if not argument.startswith(f"--{name}="))
    wrong = {
        "value": (*rest, f"--{name}={value}"),
        "unknown": (*arguments, f"--{name}x={value}"),
        "missing": arguments[1:],
        "word": (*arguments, value),
        "no value": (*rest, f"--{name}"),
    }
    how = rng.choice((*wrong, "value", "value", "value"))
    return Command(f"{how} of --{name}: {value[:40]!r}", verb, wrong[how])


# Paths that are not a run, and what makes them.
_WORDS: dict[str, Callable[[pathlib.Path], Any]] = {
    "missing": lambda path: None,
    "empty": pathlib.Path.mkdir,
    "file": lambda path: path.write_bytes(bytes(range(100))),
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path),
    "folders": lambda path: (path / "config.json").mkdir(parents=True),
}


def words(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes a path that is not a run, for a command that reads one."""
    at = {
        "model": "encoder",
        "config": "tiny.py",
        "cache": "cache",
        "root": "/",
        "null": "/dev/null",
        "long": "x" * 5000,
    }
    what = rng.choice((*at, *_WORDS))
    path = folder / at.get(what, "odd")
    if what in _WORDS:
        _WORDS[what](path)
    verb = rng.choice(
        ("status", "checkpoints", "examples", "replay", "report", "evaluate", "generate", "convert", "finetune")
    )
    arguments = good(folder)[verb].arguments
    run = f"{folder}/sweep" if verb == "report" else f"{folder}/encoder" if verb == "finetune" else f"{folder}/run"
    if verb == "checkpoints":
        arguments = (rng.choice(("verify", "list", "prune", "lost")), run)
    return Command(what, verb, tuple(argument.replace(run, str(path)) for argument in arguments))


_TAKES_CONFIG = ("config", "config", "plan", "prepare", "pretrain")


@functools.cache
def _leaves() -> list[tuple[str, str, Any]]:
    """Returns the config, dotted path and value of every field of the tiny configs."""
    from plm_jax import config

    leaves = []
    for name in ("everything", "bert", "t5", "electra", "glm", "bart"):
        todo = [("", config.to_dict(tiny.RUNS[name]))]
        while todo:
            path, node = todo.pop()
            items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            leaves += [] if items or not path else [(name, path.lstrip("."), node)]
            todo += [(f"{path}.{key}", value) for key, value in items]
    return leaves


def number(folder: pathlib.Path, rng: random.Random) -> Command:
    """Sets a number of a config to a value that is out of range or not a number."""
    name, path, _ = rng.choice([leaf for leaf in _leaves() if type(leaf[2]) in (int, float)])
    value = rng.choice(NUMBERS)
    return _override(folder, name, _verb(name, rng), path, value)._replace(is_bad=value in _NEVER)


def override(folder: pathlib.Path, rng: random.Random) -> Command:
    """Sets a field of a config to a wrong value, or a field that does not exist."""
    name, path, _ = rng.choice(_leaves())
    how = rng.random()
    if how < 0.2:
        path = rng.choice((f"{path}.x", f"{path}x", path.rpartition(".")[0], f"{path}.0", f".{path}", "kind", "a..b"))
    elif how < 0.3:
        path = f"{path.rpartition('.')[0]}.kind"
    return _override(folder, name, _verb(name, rng), path or "kind", _text(rng))


def _verb(name: str, rng: random.Random) -> str:
    # If the value is valid, pretrain compiles and runs a step, so use it only with the config that `limit` has timed.
    return rng.choice(_TAKES_CONFIG if name == "everything" else _TAKES_CONFIG[:-1])


def _override(folder: pathlib.Path, name: str, verb: str, path: str, value: str) -> Command:
    flags_of_verb = {
        "pretrain": (f"--workdir={folder}/new", "--config.train.steps=1"),
        "plan": ("--topology=none",),
        "prepare": (f"--output={folder}/new-cache",),
    }
    arguments = (f"--config={folder}/tiny.py:{name}", *flags_of_verb.get(verb, ()), f"--config.{path}={value}")
    return Command(f"{path} = {value[:40]!r}", verb, arguments)


_CODE = (
    *("", "x", "import nothing_here", "def get_config(:", "raise ValueError('x\\ny')", "raise SystemExit(3)", "1 / 0"),
    *("def get_config(): return None", "def get_config(): return {}", "def get_config(a, b): pass", "get_config = 3"),
    *("def get_config(size=''):\n    return get_config(size)", "def get_config(s=''): raise KeyError(s)", "\0", "\xff"),
    *("(" * 5000, "-" * 100_000 + "1", "x = " + "9" * 5000, "def f():\n" + " " * 200 + "\t1", "import sys; sys.exit()"),
    *("base = 'tiny.py'\ndef overrides(): yield 1", "base = 3\ndef overrides(): yield 'a', {}", "class A: pass\nA().b"),
    *("base = 'tiny.py'\ndef overrides(): yield 'a', {'train.steps': 0}", "overrides = base = 1"),
    *("base = 'tiny.py'\ndef overrides():\n    yield '../a', {}", "raise RecursionError", "raise MemoryError"),
    "base = 'tiny.py'\noverrides = {'a': {'train.steps': float('nan')}}.items",
)


def code(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes a user's Python file (a config, a sweep or a module) that fails or is not Python."""
    path = folder / "odd.py"
    text = rng.choice(_CODE)
    path.write_bytes(text.encode("latin-1"))
    verb, flags = rng.choice(
        (
            ("config", (f"--config={path}",)),
            ("pretrain", (f"--config={path}:size", f"--workdir={folder}/new")),
            ("sweep", (f"--sweep={path}", f"--workdir={folder}/new")),
            ("config", (f"--config={folder}/tiny.py", f"--module={path}")),
            ("report", (f"--workdirs={folder}/sweep", f"--output={folder}/r.html", f"--module={path}")),
        )
    )
    return Command(f"code {text[:40]!r}", verb, flags)


_MODULES = (
    *str.split(
        """
        .. . .hidden a. a..b / no.such os.path.x __main__ json this.that é mine 1 plm_jax plm_jax.no mine.py no.py .py
        /dev/null crawl sys ..mine builtins - a/b a:b \x01 antigravity.py encodings.x xml.x.y tests.y
        """
    ),
    *("", " ", "a b", "import os", "x" * 10_000),
)


def module(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes a `--module` that cannot be imported."""
    value, verb = rng.choice(_MODULES), rng.choice(("config", "report", "examples", "replay", "pretrain", "generate"))
    arguments = good(folder)[verb].arguments
    return Command(f"--module={value[:40]}", verb, (*arguments, f"--module={value}"))


_DOCUMENTS = (
    *faults_damage.DOCUMENTS,
    *(b"5", b"true", b"{}", b"[" * 100_000, b"\0" * 1000, b'{"a": ' + b"9" * 100_000 + b"}"),
    *(b'{"config": {}}', b'{"config": 5}', b'{"runs": [5]}', b'{"runs": {}}'),
)


def _spoiled_json(path: pathlib.Path, rng: random.Random) -> str:
    """Changes one node of a JSON file, or all of it; returns a description."""
    if rng.random() < 0.2:
        document = rng.choice(_DOCUMENTS)
        path.write_bytes(document)
        return f"{path.name} is {document[:20]!r}"
    spoil = functools.partial(faults_damage.spoil, rng=rng, removed=0.2, by_depth=True)
    return f"{path.name}: {faults_damage.change_json(path, spoil)}"


_READS_RUN = ("report", "status", "checkpoints", "examples", "replay", "evaluate", "generate", "convert", "pretrain")


def _reads_run(folder: pathlib.Path, rng: random.Random) -> Command:
    verb = rng.choice(_READS_RUN)
    command = good(folder)[verb]
    if verb == "report":
        return command._replace(arguments=(f"--workdirs={folder}/run", f"--output={folder}/report.html"))
    if verb == "checkpoints":
        return command._replace(arguments=(rng.choice(("verify", "list", "prune")), f"{folder}/run"))
    return command


def run_config(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts the config.json of a run."""
    what = _spoiled_json(folder / "run/config.json", rng)
    return _reads_run(folder, rng)._replace(what=what)


def sweep_json(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts a sweep.json, or the config.json of a sweep's run."""
    what = _spoiled_json(folder / rng.choice(("sweep/sweep.json", "sweep/sweep.json", "sweep/a/config.json")), rng)
    return good(folder)["report"]._replace(what=what)


def manifest(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts a manifest or another small JSON file of a run, a cache or a conversion."""
    json_files = [
        path
        for root in ("run/checkpoints", "cache", "converted", "run/vocabulary")
        for path in (folder / root).rglob("*.json")
    ]
    path = rng.choice(sorted(json_files))
    what = _spoiled_json(path, rng)
    if "converted" in path.parts:
        verb = rng.choice(("generate", "convert", "evaluate"))
        arguments = [a.replace(f"{folder}/run", f"{folder}/converted") for a in good(folder)[verb].arguments]
        return Command(what, verb, tuple(arguments))
    return _reads_run(folder, rng)._replace(what=what)


def rows(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts a line of a run's logs."""
    path = folder / "run" / rng.choice(("metrics.jsonl", "evaluation.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines))
    if rng.random() < 0.4:
        lines[at] = rng.choice((*_DOCUMENTS, b"\xff\xfe", b"\n" * 1000, b"x" * 10**6)) + rng.choice((b"\n", b""))
    else:
        row = json.loads(lines[at])
        row[rng.choice([*row, "step", "", "a/b"])] = rng.choice((*faults_damage.ODD, float("nan"), float("inf")))
        lines[at] = json.dumps(row).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    return _reads_run(folder, rng)._replace(what=f"{path.name}:{at + 1} is {lines[at][:60]!r}")


_TEXT_FILES: dict[str, Callable[[random.Random], bytes]] = {
    name: lambda rng, make=make: b"".join(make(rng)) + b"\n"
    for name, make in corpora.LINES.items()
    if name not in corpora.LARGE
} | {
    "nothing": lambda rng: b"",
    "blank lines": lambda rng: b"\n" * rng.choice((1, 1000, 3 * 10**6)),
    "bytes": lambda rng: rng.randbytes(1000),
    "one line": lambda rng: b"a" * 3 * 10**6,
    "wrong type": lambda rng: json.dumps(
        {name: rng.choice(faults_damage.ODD) for name in ("text", "inputs", "targets", "label")}
    ).encode(),
    "one row": lambda rng: b'{"text": "a", "inputs": "a", "targets": "b", "label": "bad"}\n',
    "twice": lambda rng: b'{"text": "a", "text": "b"}\n' * 10,
}


def _spoiled_text(path: pathlib.Path, rng: random.Random) -> str:
    what = rng.choice(list(_TEXT_FILES))
    data, good_rows = _TEXT_FILES[what](rng), path.read_bytes()
    before, after = rng.choice(((b"", b""), (good_rows, b""), (b"", good_rows)))
    path.write_bytes(before + data + after)
    return f"{what} in {path.name}"


def corpus(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts a corpus, for `prepare` or for a run whose cache is then out of date."""
    what = _spoiled_text(folder / "a.jsonl", rng)
    verb = rng.choice(("prepare", "prepare", "pretrain"))
    arguments = good(folder)[verb].arguments
    if verb == "prepare" and rng.random() < 0.5:
        kind = rng.choice(("file", "line", "paragraph"))
        arguments = (*arguments, "--config.data.sources.a.kind=text", f"--config.data.sources.a.document={kind}")
    return Command(what, verb, arguments)


def labeled(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts labeled rows."""
    path = folder / rng.choice(("mood.jsonl", "held_out.jsonl"))
    if rng.random() < 0.5:
        what = _spoiled_text(path, rng)
    else:
        lines = path.read_text().splitlines()
        at = rng.randrange(len(lines))
        row = json.loads(lines[at])
        name = rng.choice(("text", "label"))
        row[name] = rng.choice((*faults_damage.ODD, "Good", "good ", 2, "\ud800"))
        lines[at] = json.dumps(row)
        path.write_text("\n".join(lines) + "\n")
        what = f"{name} is {str(row[name])[:40]!r}"
    verb, flags = rng.choice((("finetune", ()), ("prepare", (f"--from={folder}/encoder", f"--output={folder}/x"))))
    if verb == "prepare":
        return Command(what, verb, (f"--config={folder}/moods.py", *flags))
    return good(folder)[verb]._replace(what=what)


_TEMPLATES = (
    *str.split(
        """
        {inputs:40000000000} {inputs:>999999999} {label:.99999999999f} {label:99999999999d} {inputs:{label}} { } {}
        {0} {inputs[0]} {inputs[99999999999]} {inputs.x} {inputs!x} {inputs!r:>2000000000} {nothing}
        {inputs.__class__} {label:x<{label}} {label:%} {inputs:d} {inputs.__doc__} {label:,} {label:1e9} {:{:{}}}
        {inputs:\x01}
        """
    ),
    *("{label.real}", "{label:0999999999}", "", "x" * 10**5, "{a" * 1000),
)


def template(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes a source's template that does not fit its rows."""
    text = rng.choice(_TEMPLATES)
    source = {"kind": "table_inputs_targets", "path": f"{folder}/pairs.jsonl", rng.choice(("inputs", "targets")): text}
    arguments = [f"--config.data.sources.a.{name}={value}" for name, value in source.items()]
    arguments += ["--config.data.inputs_targets.target_length=8"]
    return Command(
        f"template {text[:40]!r}", "prepare", (f"--config={folder}/tiny.py:t5", f"--output={folder}/x", *arguments)
    )


def prompts(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes an unusual prompt, or corrupts a file of prompts."""
    if rng.random() < 0.5:
        what = _spoiled_text(folder / "prompts.txt", rng)
        return good(folder)["generate"]._replace(what=what)
    text = _text(rng)
    return Command(
        f"prompt {text[:40]!r}", "generate", (f"--checkpoint={folder}/run", f"--prompt={text}", "--max_new_tokens=4")
    )


def compressed(folder: pathlib.Path, rng: random.Random) -> Command:
    """Makes a compressed file that is damaged, or decompresses to much more than its size."""
    path = folder / "crawl/pages.jsonl.gz"
    what = rng.choice(("newlines", "spaces", "cut", "flipped", "twice", "plain", "empty", "zeros"))
    data = gzip.decompress(path.read_bytes())
    if what in ("newlines", "spaces", "zeros"):
        piece = {"newlines": b"\n", "spaces": b" ", "zeros": b"\0"}[what] * 2**20
        with gzip.open(path, "wb", 1) as file:
            for _ in range(200):
                file.write(piece)
    elif what in ("cut", "flipped"):
        faults_damage.garble(path, rng, (what,))
    else:
        path.write_bytes({"twice": path.read_bytes() * 2, "plain": data, "empty": b""}[what])
    if rng.random() < 0.3:
        return good(folder)["clean"]._replace(what=f"gzip: {what}")
    document = rng.choice(("line", "paragraph", "file"))
    kind = rng.choice((("kind=table",), ("kind=text", f"document={document}")))
    changes = [f"--config.data.sources.a.{change}" for change in (*kind, f"path={path}")]
    return Command(f"gzip: {what}", "prepare", (f"--config={folder}/tiny.py", f"--output={folder}/x", *changes))


_CLEANING = ("shards", "validation_one_in", "limits.depth", "near_duplicates.kind", "language.min_probability", "x")
_CLEANING += ("limits", "lines.kind", "lines.min_words", "duplicates.span")


def crawl(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts a file of a crawl, or a setting of cleaning."""
    arguments = good(folder)["clean"].arguments
    if rng.random() < 0.6:
        name, value = rng.choice(_CLEANING), _text(rng, *NUMBERS)
        return Command(f"{name} = {value[:40]!r}", "clean", (*arguments, f"--set={name}={value}"))
    path = folder / "crawl" / rng.choice(("a.jsonl", "a.warc", "a.warc.wet.gz", "a.txt", "a.json"))
    path.write_bytes(rng.choice(list(_TEXT_FILES.values()))(rng))
    return Command(f"{path.name} in a crawl", "clean", arguments)


def model(folder: pathlib.Path, rng: random.Random) -> Command:
    """Corrupts a file of another program's model."""
    case = rng.choice(files.CONFIGS)(folder.parent / "models", folder / "model", rng)
    verb = rng.choice(("convert", "generate", "evaluate"))
    format = rng.choice(("plm_jax", "huggingface"))
    flags = {
        "convert": (f"--source={case.path}", f"--target={folder}/x", f"--format={format}"),
        "generate": (f"--checkpoint={case.path}", "--prompt=the state", "--max_new_tokens=2"),
        "evaluate": (f"--checkpoint={case.path}", f"--config={folder}/tiny.py"),
    }
    return Command(case.what, verb, flags[verb])


def _case(make: Make, base: Base, number: int, rng: random.Random) -> tuple[str, str]:
    """Makes a case and runs it; returns its outcome and a description."""
    del number
    command = make(base.fresh("case", make), rng)
    ended = run(command, base.root / "case", base.limit(command.verb))
    outcome = ended.outcome
    if outcome == "ended":
        outcome = "handled" if is_handled(command, ended) else "traceback"
        outcome = "silent" if command.is_bad and ended.status == 0 else outcome
    arguments = " ".join(argument[:100] for argument in command.arguments)
    return outcome, f"{command.verb}: {command.what} ({arguments}): {ended.describe()}"


GENERATORS = (
    *(flag, words, number, override, code, module, run_config, sweep_json, manifest, rows, corpus, labeled),
    *(template, prompts, compressed, crawl, model),
)
# Generators that corrupt only files that no command writes.
_NEEDS_NO_RUN = (number, code, template, crawl)
_NEEDS_MODELS = (model,)
CAMPAIGNS = [Campaign(f"verbs: {make.__name__}", 60, Base, functools.partial(_case, make)) for make in GENERATORS]
