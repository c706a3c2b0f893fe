"""README and docs: commands parse and their runs resolve; those of the demo and all Python also run, at small sizes."""

import gzip
import json
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
}
# The commands of each group run in one folder, in this order. If a page repeats a command of an earlier page, it is not
# run again. The second group begins with the run of the README.
RUN_TOGETHER = (
    (
        *("README.md", "docs/first-run.md", "docs/reproducibility.md", "docs/huggingface.md"),
        *("docs/evaluation.md", "docs/generation.md"),
    ),
    ("docs/finetuning.md", "docs/tables.md", "docs/python.md"),
    ("docs/pretraining.md", "docs/reference/vocabularies.md"),
    ("docs/reference/data.md",),
    ("docs/install.md", "docs/configs.md", "docs/tpu-pods.md", "docs/ablations.md"),
)
TINY = {
    "demo": (
        *("--config.data.sources.sotu.path=text.jsonl", "--config.data.validation_fraction=0.2"),
        *("--config.vocabulary.train_size=600", "--config.model.stack.layers=1", "--config.train.phases=()"),
    ),
    "letters": ("--config.vocabulary.train_size=600", "--config.model.stack.layers=1"),
    "pairs": ("--config.vocabulary.train_size=600", "--config.model.stack.layers=1"),
    "finetune": (
        *("--config.train.epochs=0.1", "--config.train.batch_size=8", "--config.evaluation.every=2"),
        "--config.evaluation.batch_size=8",
    ),
    "table": ("--config.train.epochs=0.02", "--config.evaluation.every=4"),
    "steps": ("--config.train.steps=2", "--config.train.batch_size=8", "--config.evaluation.every=0"),
}
# Replacements in Python code.
SMALLER = {
    "steps=100, batch_size=32": "steps=2, batch_size=8",
    "every=100, max_batches=8": "every=2, max_batches=1",
    "epochs=0.1, batch_size=32": "epochs=0.01, batch_size=8",
}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The words of each command."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def is_run(words: list[str]) -> bool:
    """Whether a command of ours is quick, needs nothing that is not here, and does more than resolve a config."""
    line = " ".join(words)
    if "--help" in words or "--topology=none" in words:
        return True
    if words[1] == "config":
        return "=configs/" in line  # `test_commands_parse` resolves the others.
    ours = re.search(
        r"=(demo:|runs/demo-|bert-hf|configs/(mine|letters|reviews|pairs)|runs/(mine|letters|pairs))", line
    )
    verbs = ("prepare", "pretrain", "finetune", "evaluate", "generate", "predict", "embed", "convert", "report")
    return bool(ours) and words[1] in verbs


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """A folder with what the pages say is there: texts, letters, reviews."""
    monkeypatch.chdir(tmp_path)
    for name in ("configs", "configs/letters"):
        (tmp_path / name).mkdir()
    with gzip.open(ROOT / "plm_jax/data/corpora/sotu.jsonl.gz") as file:
        texts = [json.loads(next(file))["text"] for _ in range(12)]
    for number, text in enumerate(texts):
        (tmp_path / f"configs/letters/{number}.txt").write_text(text)
    paragraphs = [{"text": part} for text in texts for part in text.split("\n") if len(part) > 200]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in paragraphs[:200]))
    (tmp_path / "blanks.txt").write_text("The United [MASK] of America.\nThe people of the [MASK] are free.\n")
    stars = [{"text": f"it was {['bad', 'good'][i % 2]}, said {i}", "stars": 1 + i % 2} for i in range(200)]
    (tmp_path / "configs/reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stars))
    stars = [{"sentence": row["text"], "label": ["negative", "positive"][row["stars"] - 1]} for row in stars]
    for name, rows in (("movies", stars[40:]), ("held-out", stars[:40])):
        (tmp_path / f"configs/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(verb, words: list[str], folder: pathlib.Path) -> None:
    """Runs a command of ours, with fewer and smaller steps."""
    name, *arguments = words[1:]
    if name == "--help":
        finished = subprocess.run([sys.executable, "-m", "plm_jax", name], cwd=ROOT, capture_output=True, text=True)
        assert finished.returncode == 0 and "pretrain" in finished.stdout
        return
    if "--help" not in words and name in ("prepare", "pretrain"):
        arguments += TINY["demo"] if "--config=demo" in " ".join(arguments) else ()
        arguments += TINY["letters"] if "--config=configs/letters" in " ".join(arguments) else ()
        arguments += TINY["pairs"] if "--config=configs/pairs" in " ".join(arguments) else ()
        arguments += TINY["steps"]
    arguments += TINY.get(name, ())
    arguments += TINY["table"] if "--train=" in " ".join(arguments) else ()
    finished = verb(name, *arguments, folder=folder)
    assert finished.status == 0 and finished.out + finished.err, f"{shlex.join(words)}: {finished.err}"
    if name == "evaluate":
        assert re.search(r"^\S+( \(\S+\))? +value", finished.out, re.MULTILINE), finished.out


def execute(code: str, folder: pathlib.Path) -> None:
    """Runs Python with fewer and smaller steps, or puts it where its first line says that it is."""
    for text, smaller in SMALLER.items():
        code = code.replace(text, smaller)
    if place := re.match(r"# (configs/\w+\.py)\n", code):
        (folder / place[1]).write_text(code)
    else:
        exec(compile(code, "docs", "exec"), {})


@pytest.mark.parametrize("pages", RUN_TOGETHER, ids=lambda pages: pages[-1])
def test_the_commands_and_python_of_pages_run(pages, verb, sandbox):
    earlier: list[list[str]] = []
    if pages[0] == "docs/finetuning.md":
        run(verb, next(words for words in commands("README.md") if words[0] == "plm_jax"), sandbox)
    for page in pages:
        matches = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
        for language, code in matches:
            if language == "python":
                execute(code, sandbox)
                continue
            for line in code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0] == "plm_jax" and is_run(words) and words not in earlier:
                    run(verb, words, sandbox)
        earlier += commands(page)
    if "docs/pretraining.md" in pages:
        (row,) = map(json.loads, (sandbox / "runs/mine/evaluation.jsonl").read_text().splitlines())
        assert row["reviews/most_frequent_accuracy"] >= 0.5 and "letters/loss" in row
    if pages[-1] == "docs/ablations.md":
        from plm_jax.experiments import sweep

        assert [member.name for member in sweep.load_members("configs/rates.py", "runs/rates")][-1] == "prefix_lm"


def test_other_pages_have_no_python():
    # tests/extending runs the Python of `extending`.
    for page in PAGES.keys() - {page for pages in RUN_TOGETHER for page in pages} - {"docs/extending.md"}:
        assert not blocks(page, "python"), f"{page} has Python that no test runs"


# Parses the flags of verbs and resolves their configs, but does nothing more; each verb is a fork of one process.
PARSE = """
import json, os, runpy, sys
from plm_jax.common import command_line
from plm_jax.config.flags import ConfigFlag

def parse(main, accepts_options=False, positionals=()):
    command_line._parse_flags(accepts_options, positionals)
    for flag in main.__globals__.values():
        if isinstance(flag, ConfigFlag) and flag.is_given:
            flag.run(may_lack_model=True)

command_line.run = parse
for words in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        try:
            sys.argv = words
            runpy.run_module(f"plm_jax.cli.{words[0]}", run_name="__main__", alter_sys=True)
        except BaseException as error:
            print(words, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def ours(words: list[str]) -> list[str] | None:
    """The verb and the arguments of a command, or of one within."""
    if words[0] == "plm_jax":
        return words[1:]
    if "-m" in words and words[words.index("-m") + 1] == "plm_jax":
        return words[words.index("-m") + 2 :]
    return None


def test_commands_parse():
    scripts = [code for page in PAGES for code in blocks(page, "python")]
    written = [name for code in scripts for name in re.findall(r"\A# (configs/\w+)\.py\n", code)]
    left_out = re.compile(rf"--help|--config=({'|'.join(written)})")
    verbs = [verb for page in PAGES for words in commands(page) if (verb := ours(words))]
    verbs = [words for words in verbs if not left_out.search(" ".join(words))]
    assert {words[0] for words in verbs} >= {"plan", "prepare", "clean", "sweep", "pretrain", "evaluate", "generate"}
    command = [sys.executable, "-c", PARSE]
    parsed = subprocess.run(command, cwd=ROOT, input=json.dumps(verbs), capture_output=True, text=True)
    assert (parsed.returncode, parsed.stdout, parsed.stderr) == (0, "", "")


def dry_run(script: str, flags: list[str]) -> str:
    """Returns the output of a launcher that starts nothing."""
    command = [sys.executable, script, "--dry_run", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_other_command_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for words in (words for page in PAGES for words in commands(page)):
        match words:
            case ["plm_jax", *_]:
                pass
            case ["bash", script, *_]:
                subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
            case ["pip", "install", "--require-hashes", "-r", file]:
                assert (ROOT / file).exists()
            case ["pip", "install", what]:
                assert all(name in extras for name in re.findall(r"[\w-]+", what)), what
            case ["python", "launch/tpu_vm.py", *rest]:
                assert "plm_jax pretrain" in dry_run("launch/tpu_vm.py", rest)
            case ["python", "launch/gke.py", *rest]:
                assert {"plm_jax", "pretrain"} <= set(re.findall(r"- \"(.*)\"", dry_run("launch/gke.py", rest)))
            case ["docker", "build", "--file", file, "--tag", _, "."]:
                assert (ROOT / file).exists()
            case ["docker", "push", image]:
                assert any(image in built for built in commands("docs/tpu-pods.md") if built[:2] == ["docker", "build"])
            case ["sbatch", _, script, *rest]:
                subprocess.run(["bash", script, "--dry_run", *rest], cwd=ROOT, check=True, capture_output=True)
            case ["python", "launch/local.py", *rest]:
                printed = subprocess.check_output([sys.executable, "launch/local.py", "--help"], cwd=ROOT, text=True)
                assert all(flag.partition("=")[0] in printed for flag in rest[: rest.index("--")])
            case _:
                raise AssertionError(f"a command that no test knows: {shlex.join(words)}")


def test_links_lead_somewhere_and_every_page_is_linked():
    linked = set()
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            target = (ROOT / page).parent / link
            assert target.exists(), f"{page} links to {link}"
            linked.add(target.resolve().relative_to(ROOT).as_posix())
    assert PAGES.keys() - {"README.md"} <= linked


def test_generated_pages_are_current(verb):
    reference = runpy.run_path(str(ROOT / "docs/reference.py"))
    assert PAGES["docs/reference/commands.md"] == reference["commands"](lambda name: verb(name, "--help").out)
    # Tests register classes of their own in this process.
    code = "import runpy; print(end=runpy.run_path('docs/reference.py')['fields']())"
    fields = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert PAGES["docs/reference/config.md"] == fields, "run python docs/reference.py"
    assert PAGES["docs/reference/cleaning.md"] == reference["cleaning"](), "run python docs/reference.py"


def test_named_files_exist():
    for page, text in PAGES.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for path in re.findall(r"`((?:plm_jax|configs|launch|benchmarks|tests)/[\w./]*)", prose):
            assert (ROOT / path).exists(), f"{page} names {path}"
