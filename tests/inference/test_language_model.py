"""`plm_jax.load` and what it returns."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import plm_jax
from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import Vocabulary
from plm_jax.evaluation import perplexity
from plm_jax.generation import decoding, inputs
from plm_jax.runs import checkpoint_formats, checkpoints
from tests import golden

# Paths of the checkpoints whose parameters were loaded.
ASKED = []


@Vocabulary.register
class Letters:
    """Vocabulary whose token i is the letter with code i + 32. Like seqio, it stops decoding at its end token."""

    vocab_size, eos_id = 61, 13

    def encode(self, text):
        return [ord(letter) - 32 for letter in text]

    def decode(self, tokens):
        tokens = list(tokens)
        tokens = tokens[: tokens.index(self.eos_id) + 1] if self.eos_id in tokens else tokens
        return "".join(chr(token + 32) for token in tokens)


@pytest.fixture
def lm():
    model = plm_jax.load(golden.FOLDER / "gpt2")
    model.vocabulary = Letters()
    return model


def run_of(model):
    return config.Run(
        model=model,
        objective=objectives.Causal(),
        data=config.DataConfig(cache_dir="cache", length=8, sources={"a": config.TextFiles("a.txt")}),
        vocabulary=config.VocabularyConfig("bpe:/elsewhere/v.json,/elsewhere/m.txt", eos=13, bos=3),
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-3),
        train=config.TrainConfig(steps=1, batch_size=1),
    )


@pytest.fixture
def make_workdir(tmp_path, monkeypatch):
    """Creates a run directory whose checkpoints contain a model."""

    def make(pretrained, run):
        def load_params(path, average=False):
            ASKED.append(str(path))
            return pretrained.params, run, {"step": 7, "vocabulary_id": identity(run) or "abc"}

        def identity(run):
            folder = tmp_path / "run" / "vocabulary"
            spec = vocabularies.within(run.vocabulary.spec, str(folder))
            vocabulary = replace(run.vocabulary, spec=spec)
            return vocabularies.identity(vocabularies.load_plain(vocabulary)) if folder.exists() else None

        monkeypatch.setattr(checkpoints, "load_params", load_params)
        (tmp_path / "run" / "checkpoints" / "7").mkdir(parents=True)
        (tmp_path / "run" / "config.json").write_text(json.dumps({"config": config.to_dict(run)}))
        return tmp_path / "run"

    return make


@pytest.fixture
def workdir(make_workdir):
    """Run directory whose checkpoints contain the golden model."""
    pretrained = plm_jax.load(golden.FOLDER / "gpt2")
    return make_workdir(pretrained, run_of(pretrained.config))


def test_importing_the_package_imports_no_jax():
    program = "import plm_jax, sys; assert 'jax' not in sys.modules; plm_jax.load; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with pytest.raises(AttributeError, match="lode"):
        _ = plm_jax.lode


def test_attributes_of_loaded_model(lm):
    assert isinstance(lm, plm_jax.LanguageModel)
    assert isinstance(lm.config, models.DecoderConfig) and lm.config.stack.layers == 2
    assert lm.run is None
    assert lm.special_ids == {"bos_token_id": 3, "eos_token_id": 13}
    by_hand = 61 * 24 + 32 * 24 + 2 * (4 * (24 * 24 + 24) + 24 * 40 + 40 + 40 * 24 + 24 + 4 * 24) + 2 * 24
    assert lm.num_parameters == by_hand


def test_missing_mask_means_all_tokens_are_real(lm):
    tokens = golden.expected("gpt2")["tokens"]
    for outputs in (lm.logits, lm.hidden_states):
        np.testing.assert_array_equal(outputs(tokens), outputs(tokens, np.ones_like(tokens)))
        assert outputs(tokens.tolist()).dtype == np.float32
    head = lm.params["token_embedding"].T
    np.testing.assert_allclose(lm.hidden_states(tokens)[-1] @ head, lm.logits(tokens), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        ("gpt2", {"tokens": [1, 2]}, "expected \\[batch, length\\]"),
        ("gpt2", {"mask": [[1, 1]]}, "mask has shape"),
        ("gpt2", {"tokens": [[1, 61]]}, "from 0 to 60"),
        ("gpt2", {"tokens": [[1, -1]]}, "from -1"),
        ("gpt2", {"tokens": [[1] * 33]}, "33 tokens exceed the model's 32 positions"),
        ("gpt2", {"tokens": [[1, 2], [1]]}, "tokens have rows of different lengths: pad them"),
        ("gpt2", {"tokens": np.array([[1, 2], [1]], object)}, "tokens have rows of different lengths: pad them"),
        ("gpt2", {"tokens": [[1, 2]], "mask": [[1], [1, 1]]}, "mask have rows of different lengths"),
        ("gpt2", {"tokens": [[1.5]]}, "tokens are not integers"),
        ("gpt2", {"tokens": [[2**32]]}, "tokens are not integers"),
        ("gpt2", {"tokens": [["a"]]}, "tokens are not integers"),
        ("gpt2", {"tokens": [[None]]}, "tokens are not integers"),
        ("gpt2", {"token_types": [[0]]}, "no token types"),
        ("gpt2", {"decoder_tokens": [[0]]}, "not an encoder-decoder"),
        ("gpt2", {"decoder_mask": [[1]]}, "decoder_mask is passed without decoder_tokens"),
        ("bert", {"token_types": [[3]]}, "token_types range from 3 to 3: the model's range from 0 to 2"),
        ("bert", {"token_types": [[0, 0]]}, "token_types has shape"),
        ("bert", {"tokens": [[1] * 13], "mask": [[1] + [0] * 12]}, "13 tokens exceed the model's 12 positions"),
        ("t5", {"token_types": [[0]]}, "no token types"),
        ("t5", {"decoder_tokens": [[37]]}, "decoder_tokens range from 37"),
        ("t5", {"decoder_tokens": [[1], [1]]}, "different batch sizes"),
        ("t5", {"decoder_tokens": [[1]], "decoder_mask": [[1, 1]]}, "decoder_mask has shape"),
        ("bert", {"token_types": [[0], [0, 0]]}, "token_types have rows of different lengths"),
        ("t5", {"decoder_tokens": [[1], [1, 2]]}, "decoder_tokens have rows of different lengths"),
        ("t5", {"decoder_tokens": [[1]], "decoder_mask": [[1], [1, 1]]}, "decoder_mask have rows of different lengths"),
        ("gpt2", {"head": "sentence_pair"}, "no sentence-pair head"),
        ("t5", {"head": "sentence_pair"}, "no sentence-pair head"),
        ("t5", {"head": None}, "pass decoder_tokens too"),
        ("bert", {"head": "sentence_pairs"}, "no head 'sentence_pairs': did you mean 'sentence_pair'"),
    ],
)
def test_invalid_inputs_are_rejected(name, inputs, words):
    model = plm_jax.load(golden.FOLDER / name)
    for outputs in (model.logits,) if "head" in inputs else (model.logits, model.hidden_states):
        with pytest.raises(UserError, match=words):
            outputs(**{"tokens": [[1]], **inputs})


def test_encoder_without_heads_has_only_hidden_states():
    whole = plm_jax.load(golden.FOLDER / "bert")
    alone = replace(whole.config, head=models.NoHead(), pooler=models.NoHead())
    heads = ("head_bias", "head_transform", "head_norm", "pooler", "classifier")
    params = {name: value for name, value in whole.params.items() if name not in heads}
    features = plm_jax.LanguageModel(alone, params)
    np.testing.assert_allclose(features.hidden_states([[1, 2]]), whole.hidden_states([[1, 2]]), atol=1e-5)
    for head, words in ((None, "no vocabulary head"), ("sentence_pair", "no sentence-pair head")):
        with pytest.raises(UserError, match=words):
            features.logits([[1, 2]], head=head)


def test_padding_may_exceed_positions(lm):
    tokens, mask = np.ones((1, 40), int), np.arange(40)[None] >= 8
    np.testing.assert_allclose(lm.logits(tokens, mask)[:, 8:], lm.logits(tokens[:, 8:]), atol=1e-5)


def test_text_is_continued(lm):
    prompts = ["HELLO", "A-B"]  # "-" is the end token.
    tokens = [lm.vocabulary.encode(prompt) for prompt in prompts]
    assert 13 in tokens[1]
    want = decoding.generate(lm.model, lm.params, tokens, max_new_tokens=6, eos_ids=[13])
    got = lm.generate(prompts, max_new_tokens=6)
    assert got == [lm.vocabulary.decode(row) for row in want]


@pytest.mark.parametrize("has_vocabulary", [True, False])
def test_ids_are_continued_with_ids(lm, has_vocabulary):
    prompts = [lm.vocabulary.encode(prompt) for prompt in ("HELLO", "A")]
    want = decoding.generate(lm.model, lm.params, prompts, max_new_tokens=6, eos_ids=[13])
    if not has_vocabulary:
        del lm.vocabulary
    assert lm.generate(prompts, max_new_tokens=6) == want
    assert lm.generate(np.array(prompts[:1]), max_new_tokens=6) == want[:1]
    assert lm.generate(prompts[0], max_new_tokens=6) == want[:1]
    for invalid, words in [([[]], "empty prompt"), ([[1, 61]], "a prompt has token 61")]:
        with pytest.raises(UserError, match=words):
            lm.generate(invalid, max_new_tokens=6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1, 2], "A"], "some prompts are texts and some are ids"),
        ([[[1]], [[2]]], r"pass \[\[1, 2, 3\], …\]"),
        ([[1.5]], "not integers"),
    ],
)
def test_prompts_that_are_neither_texts_nor_ids_are_rejected(values, message):
    with pytest.raises(UserError, match=message):
        inputs.prompts(values)


def test_encoder_decoder_answers_ids_without_vocabulary():
    lm = plm_jax.load(golden.FOLDER / "t5")
    assert lm.special_ids["eos_token_id"] == 1
    (answer,) = lm.generate([[5, 6, 7, 1]], max_new_tokens=4)
    begun = [[lm.special_ids["decoder_start_token_id"], *answer]]
    best = lm.logits([[5, 6, 7, 1]], decoder_tokens=begun)[0].argmax(axis=-1).tolist()
    assert best[: len(answer)] == answer and (len(answer) == 4 or best[len(answer)] == 1)


def test_beam_options_reach_the_decoder():
    lm = plm_jax.load(golden.FOLDER / "gpt2_unusual")
    lm.vocabulary, want = Letters(), golden.expected("gpt2_unusual")
    prompt = lm.vocabulary.decode(want["tokens"][0])
    new = [token for token in want["beam"][0] if token >= 0]
    assert lm.generate([prompt], max_new_tokens=10, num_beams=3) == [lm.vocabulary.decode(new)]


def test_sampling_arguments_reach_the_decoder(lm):
    first = lm.generate(["HELLO"], max_new_tokens=6, temperature=3.0, seed=1)
    assert first == lm.generate(["HELLO"], max_new_tokens=6, temperature=3.0, seed=1)
    assert first != lm.generate(["HELLO"], max_new_tokens=6, temperature=3.0, seed=2)
    greedy = lm.generate(["HELLO"], max_new_tokens=6)
    assert greedy == lm.generate(["HELLO"], max_new_tokens=6, temperature=3.0, top_k=1)
    assert greedy == lm.generate(["HELLO"], max_new_tokens=6, temperature=3.0, top_p=1e-9)


def test_decoding_defaults_come_from_the_run(make_workdir):
    pretrained = plm_jax.load(golden.FOLDER / "gpt2")
    run = run_of(pretrained.config)
    how = config.DecodingConfig(num_beams=3, max_new_tokens=7, no_repeat_ngram_size=2)
    run = replace(run, evaluation=config.EvaluationConfig(decoding=how))
    lm = plm_jax.load(make_workdir(pretrained, run))
    lm.vocabulary = Letters()
    prompts = [[40, 37, 44], [33]]

    def want(**options):
        return decoding.generate(lm.model, lm.params, prompts, eos_ids=[13], **options)

    assert lm.generate(prompts) == want(num_beams=3, max_new_tokens=7, no_repeat_ngram_size=2)
    assert lm.generate(prompts, num_beams=1) == want(max_new_tokens=7, no_repeat_ngram_size=2)
    assert lm.generate(prompts, num_beams=1) != lm.generate(prompts)
    with pytest.raises(UserError, match="set num_beams to 1"):
        lm.generate(prompts, temperature=1.0)


def test_answers_end_before_stop_strings(lm):
    free = lm.generate("HELLO", max_new_tokens=6)[0]
    stop = free[3:5]
    assert lm.generate("HELLO", max_new_tokens=6, stop_strings=[stop]) == [free[: free.index(stop)]]
    assert lm.generate("HELLO", max_new_tokens=6, stop_strings=stop) == [free[: free.index(stop)]]
    (ids,) = lm.generate(lm.vocabulary.encode("HELLO"), max_new_tokens=6, stop_strings=[stop])
    assert lm.vocabulary.decode(ids) == free[: free.index(stop) + 2]
    for text in lm.generate(["HELLO"], max_new_tokens=6, num_beams=3, num_return_sequences=3, stop_strings=stop)[0]:
        assert stop not in text


def test_answers_begin_with_forced_prefix(lm):
    (text,) = lm.generate("HELLO", max_new_tokens=6, forced_prefix=" WE")
    assert text == " WE" + lm.generate("HELLO WE", max_new_tokens=3)[0]
    assert lm.generate("HELLO", max_new_tokens=6, forced_prefix=lm.vocabulary.encode(" WE")) == [text]


def test_empty_prompt_starts_from_bos_or_eos(lm):
    tokens = decoding.generate(lm.model, lm.params, [[3], [13]], max_new_tokens=6, eos_ids=[13])
    assert lm.generate([""], max_new_tokens=6) == [lm.vocabulary.decode(tokens[0])]
    del lm.special_ids["bos_token_id"]
    assert lm.generate([""], max_new_tokens=6) == [lm.vocabulary.decode(tokens[1])]


BOS, GMASK, SOP = 3, 20, 21


@pytest.mark.parametrize("begin", [("bos",), ("gmask", "sop")])
def test_prompts_begin_like_training_texts(begin, make_workdir, tmp_path):
    """Also after saving, and for an empty vocabulary."""
    pretrained = plm_jax.load(golden.FOLDER / "gpt2")
    run = run_of(pretrained.config)
    vocabulary = replace(run.vocabulary, gmask=GMASK, sop=SOP)
    run = replace(run, data=replace(run.data, layout=config.Blocks(begin=begin)), vocabulary=vocabulary)
    workdir = make_workdir(pretrained, run)
    write_vocabulary(workdir)
    lm = plm_jax.load(workdir)
    lm.save(tmp_path / "ours", format="plm_jax")
    checkpoint_formats.convert(str(tmp_path / "ours"), str(tmp_path / "theirs"), "huggingface")
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "again", format="plm_jax")
    first = [getattr(vocabulary, name) for name in begin]
    letters = Letters()
    prompts = [[*first, *letters.encode(text)] for text in ("HELLO", "")]
    want = decoding.generate(lm.model, lm.params, prompts, max_new_tokens=6, eos_ids=[13])
    for path in (workdir, tmp_path / "ours", tmp_path / "theirs", tmp_path / "again"):
        lm = plm_jax.load(path)
        lm.vocabulary = letters
        assert lm.generate(["HELLO", ""], max_new_tokens=6) == [letters.decode(tokens) for tokens in want]


def test_empty_prompt_of_run_starts_from_trained_ids(make_workdir):
    """The model never read its bos; without an eos, nothing separated its documents."""
    pretrained = plm_jax.load(golden.FOLDER / "gpt2")
    lm = plm_jax.load(make_workdir(pretrained, run_of(pretrained.config)))
    lm.vocabulary = Letters()
    (want,) = decoding.generate(lm.model, lm.params, [[13]], max_new_tokens=6, eos_ids=[13])
    assert lm.generate([""], max_new_tokens=6) == [lm.vocabulary.decode(want)]
    del lm.special_ids["eos_token_id"], lm.special_ids["separator_token_id"]
    lm.vocabulary.eos_id = None
    with pytest.raises(UserError, match="cannot continue an empty prompt: pass a first word"):
        lm.generate([""])


def test_text_without_vocabulary_is_rejected():
    with pytest.raises(UserError, match=r"vocab\.json"):
        plm_jax.load(golden.FOLDER / "gpt2").generate(["a"], max_new_tokens=1)


# Documents end with the end token, and texts have no other special tokens.
OF_RUN = {"bos_token_id": 3, "eos_token_id": 13, "ends_with": [], "separator_token_id": 13}


def test_run_directory_and_checkpoints_load(workdir):
    tokens = golden.expected("gpt2")["tokens"]
    want = plm_jax.load(golden.FOLDER / "gpt2").logits(tokens)
    for path in (workdir, workdir / "checkpoints" / "7"):
        lm = plm_jax.load(path)
        assert ASKED.pop() == str(path)
        np.testing.assert_array_equal(lm.logits(tokens), want)
        assert lm.run == run_of(lm.config)
        assert (lm.workdir, lm.step, lm.vocabulary_id) == (str(workdir), 7, "abc")
        assert lm.special_ids == OF_RUN


VOCABULARY = {"v.json": "vocab.json", "m.txt": "merges.txt"}


def write_vocabulary(workdir):
    """A vocabulary of only special tokens."""
    (workdir / "vocabulary").mkdir()
    (workdir / "vocabulary" / "v.json").write_text(json.dumps({f"<{i}>": i for i in range(30)}))
    (workdir / "vocabulary" / "m.txt").write_text("#version: 0.2\n")


def test_vocabulary_of_run_directory_is_used_and_saved(workdir, tmp_path):
    write_vocabulary(workdir)
    plm_jax.load(workdir / "checkpoints" / "7").save(tmp_path / "saved")
    for ours, theirs in VOCABULARY.items():
        assert (tmp_path / "saved" / theirs).read_text() == (workdir / "vocabulary" / ours).read_text()
    saved = plm_jax.load(tmp_path / "saved")
    assert saved.special_ids == OF_RUN | {"begins_with": [], "max_length": saved.config.max_length}


@pytest.mark.parametrize(
    ("name", "kind", "upper", "want"),
    [
        ("distilbert", "cased", [], [6, 1]),
        ("electra", "cased", [], [6, 1]),
        ("bert", "uncased", ["El"], [5, 7]),
        ("bert", "", [], [5, 7]),
        ("bert", "", ["El"], [6, 8]),
    ],
)
def test_case_of_vocabulary_is_saved(name, kind, upper, want, make_workdir, tmp_path):
    """A cased vocabulary of lower-case text cannot be recognized by the letters of vocab.txt."""
    pretrained = plm_jax.load(golden.FOLDER / name)
    section = config.VocabularyConfig(
        "wordpiece:/elsewhere/vocab.txt", train_kind=kind, pad=0, unk=1, cls=2, sep=3, mask=4
    )
    run = replace(run_of(pretrained.config), vocabulary=section, objective=objectives.MaskedLM())
    workdir = make_workdir(pretrained, run)
    (workdir / "vocabulary").mkdir()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "e", "é", "el", *upper]
    (workdir / "vocabulary" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    lm = plm_jax.load(workdir)
    lm.save(tmp_path / "ours", format="plm_jax")
    plm_jax.load(tmp_path / "ours").save(tmp_path / "theirs")
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "again", format="plm_jax")
    for path in (workdir, *(tmp_path / name for name in ("ours", "theirs", "again"))):
        assert plm_jax.load(path).vocabulary.encode("é El") == want
    lower = want == [5, 7]
    assert json.loads((tmp_path / "theirs" / "tokenizer_config.json").read_text())["do_lower_case"] == lower
    # A run with the other case has another vocabulary in the same file.
    other = replace(lm.vocabulary.specials, train_kind="cased" if lower else "uncased")
    asked = plm_jax.load(tmp_path / "theirs"), replace(run, vocabulary=other)
    with pytest.raises(UserError, match="the model has vocabulary"):
        perplexity.check_vocabulary(*asked, vocabularies.identity(vocabularies.load(other)), "prepare")
    perplexity.check_vocabulary(*asked, vocabularies.identity(lm.vocabulary), "prepare")


def test_hugging_face_directory_inside_run_loads(workdir):
    export = shutil.copytree(golden.FOLDER / "gpt2", workdir / "export" / "gpt2")
    assert plm_jax.load(export).run is None


def test_saved_models_load(lm, tmp_path):
    lm.save(tmp_path / "saved")
    tokens = golden.expected("gpt2")["tokens"]
    np.testing.assert_array_equal(plm_jax.load(tmp_path / "saved").logits(tokens), lm.logits(tokens))
    with pytest.raises(UserError, match="did you mean 'huggingface'"):
        lm.save(tmp_path / "saved", format="hugingface")


def test_paths_without_model_are_rejected(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        plm_jax.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no config\.json: expected a run directory"):
        plm_jax.load(tmp_path)
    for seed in (0, 1):  # As `finetune --seeds=0,1` and sweeps arrange runs.
        (tmp_path / "runs" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "runs" / f"seed-{seed}" / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"runs has no config\.json: pass a directory in it that has one, .*/runs/seed-0$"
    ):
        plm_jax.load(tmp_path / "runs")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        plm_jax.load(tmp_path)
