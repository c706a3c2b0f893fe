"""The config in the README, as it stands there."""

import gzip
import json
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).parents[1]


def test_a_corpus_and_a_task_are_added_by_the_lines_in_the_readme(verb, tmp_path):
    (lines,) = re.findall(r"```python\n(# configs/mine\.py.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in lines.splitlines() if line and not line.startswith(("#", "import", "from"))]) <= 10
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "mine.py").write_text(lines)
    for name in ("demo.py", "t5.py"):
        shutil.copy(ROOT / "configs" / name, configs)
    (configs / "letters").mkdir()
    with gzip.open(ROOT / "plm_jax/data/corpora/sotu.jsonl.gz") as file:
        for number in range(12):
            (configs / "letters" / f"{number}.txt").write_text(json.loads(next(file))["text"])
    stars = [{"text": f"it was {['bad', 'good'][i % 2]}, said {i}", "stars": 1 + i % 2} for i in range(200)]
    (configs / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stars))

    steps = ("--config.train.steps=3", "--config.evaluation.every=0", "--config.train.batch_size=8")
    trained = verb("pretrain", f"--config={configs}/mine.py", f"--workdir={tmp_path}/run", *steps)
    assert trained.status == 0, trained.err
    evaluated = verb("evaluate", f"--checkpoint={tmp_path}/run")
    assert evaluated.status == 0, evaluated.err
    assert re.search(r"^letters: loss \d", evaluated.out, re.MULTILINE)
    assert re.search(r"^reviews: examples \d+, accuracy \d.*, most_frequent_accuracy \d\d", evaluated.out, re.MULTILINE)
    (row,) = map(json.loads, (tmp_path / "run/evaluation.jsonl").read_text().splitlines())
    assert row["reviews/most_frequent_accuracy"] >= 50 and "letters/loss" in row
