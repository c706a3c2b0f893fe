"""Batches of prompts."""

import json

import pytest

from plm_jax.common.errors import UserError
from plm_jax.inference import prompt_files


class Repeating:
    """Answers with the prompt and the options, and records batch sizes."""

    def __init__(self):
        self.sizes, self.seeds = [], []

    def generate(self, prompts, seed, **options):
        self.sizes.append(len(prompts))
        self.seeds.append(seed)
        texts = [f"{prompt}!" for prompt in prompts]
        number = options.get("num_return_sequences", 1)
        return [[text] * number for text in texts] if number > 1 else texts


def test_answers_keep_order_and_batches_have_one_size():
    lm, prompts = Repeating(), list("abcdefg")
    answered = list(prompt_files.answer(lm, prompts, 3, 5))
    assert answered == [(prompt, [f"{prompt}!"]) for prompt in prompts]
    assert lm.sizes == [3, 3, 3]
    assert lm.seeds[0] == 5 and len(set(lm.seeds)) == 3
    assert list(prompt_files.answer(lm, ["a"], 3, -1, num_return_sequences=2)) == [("a", ["a!", "a!"])]
    assert lm.sizes[-1] == 1


def test_prompts_and_answers_are_lines(tmp_path):
    (tmp_path / "in.txt").write_bytes("one\r\nzwei ü\u2028drei".encode())
    prompts = prompt_files.read(str(tmp_path / "in.txt"))
    assert prompts == ["one", "zwei ü\u2028drei"]
    prompt_files.write(str(tmp_path / "out.jsonl"), prompt_files.answer(Repeating(), prompts, 2, 0))
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"prompt": p, "answers": [f"{p}!"]} for p in prompts]
    assert lines[-1] == "" and "ü" in lines[1]


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty: expected one prompt"), (b"a\n \n", r"in\.txt:2 is blank"), (b"\xff", "is not UTF-8")],
)
def test_invalid_prompt_files_are_rejected(data, words, tmp_path):
    (tmp_path / "in.txt").write_bytes(data)
    with pytest.raises(UserError, match=words):
        prompt_files.read(str(tmp_path / "in.txt"))
