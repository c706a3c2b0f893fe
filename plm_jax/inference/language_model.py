"""The Python interface of a loaded model: `lm = plm_jax.load(path)`."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32, Integer

from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import Vocabulary, words
from plm_jax.generation import inputs, scoring, strategies
from plm_jax.generation.blanks import FilledText
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.scoring import ContinuationScore
from plm_jax.generation.strategies.strategy import Strategy
from plm_jax.generation.text_format import MissingVocabularyError, TextFormat
from plm_jax.hub import tasks
from plm_jax.hub.pretrained import Pretrained, float32
from plm_jax.inference import embeddings, prompt_files
from plm_jax.inference.embeddings import Pooling
from plm_jax.inference.predictions import TextPrediction
from plm_jax.inference.predictor import Predictor
from plm_jax.models import registry
from plm_jax.models.heads import TASK
from plm_jax.models.protocol import ModelConfig, Module
from plm_jax.runs import checkpoint_formats, model_text

# A text or a row of ids, or several of one kind.
Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Integer[Array | np.ndarray, "..."]


class LanguageModel:
    """A trained model with its parameters and, if it has one, its vocabulary.

    Attributes:
      config: settings of the model.
      params: parameters, float32.
      run, workdir, step, vocabulary_id, special_ids: as in `hub.pretrained.Pretrained`.
    """

    def __init__(
        self, config: ModelConfig, params: Mapping[str, Any], *, vocabulary_spec: str | None = None, **origin: Any
    ):
        """Initializes a model.

        Args:
          config: settings of the model.
          params: parameters.
          vocabulary_spec: spec for `vocabularies.load`.
          origin: other fields of `Pretrained`.
        """
        self.config, self.params = config, jax.tree.map(jnp.asarray, params)
        self._origin = Pretrained(config, {}, vocabulary=vocabulary_spec, **origin)
        self.run, self.workdir, self.step = self._origin.run, self._origin.workdir, self._origin.step
        self.vocabulary_id, self.special_ids = self._origin.vocabulary_id, dict(self._origin.special_ids)

    def __repr__(self) -> str:
        """Returns the family, size, vocabulary, heads and origin of the model."""
        family = self._origin.family or self.config.kind
        heads = []
        for name, head in self.config.named_heads.items():
            labels = ", ".join(getattr(head, "labels", ()))
            kind = f"{head.kind}: {labels}" if labels else head.kind
            heads.append(name if name == kind else f"{name} ({kind})")
        directories = {os.path.dirname(path) for path in self._origin.hub_files.values()}
        origin = self.workdir or next(iter(directories), "pretrained weights")
        lines = [
            f"{family}, {self.num_parameters:,} parameters",
            f"vocabulary: {self._origin.vocabulary or 'none'} ({self.config.vocab_size:,} ids)",
            f"heads: {', '.join(heads) or 'none'}",
            f"origin: {origin}{'' if self.step is None else f', step {self.step:,}'}",
        ]
        return f"LanguageModel({'; '.join(lines)})"

    @cached_property
    def model(self) -> Module:
        """Linen module that computes in float32: `lm.model.apply({"params": lm.params}, tokens, mask)`."""
        return registry.build(self.config)

    @property
    def num_parameters(self) -> int:
        """Number of parameters; tied weights count once."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @property
    def strategy(self) -> Strategy:
        """Strategy of the model's architecture, which reads ids and writes text."""
        decoding = DecodingConfig() if self.run is None else self.run.evaluation.decoding
        return strategies.build(self.model, self.params, self.text_format, decoding)

    @property
    def text_format(self) -> TextFormat:
        """Format of the texts that the model was trained on."""
        objective = None if self.run is None else self.run.objective
        before, after = model_text.frame(self.config, self.special_ids, self.run)
        separator = self.special_ids.get("separator_token_id")
        if separator is None and self.run is None:
            separator = self.special_ids.get("bos_token_id")
        return TextFormat(
            special_ids=self.special_ids,
            before=tuple(before),
            after=tuple(after),
            begins_with=tuple(model_text.begins_with(self.special_ids)),
            separator=separator,
            has_prefix=objective is not None and objective.has_prefix,
            fills_blanks=objective is None or objective.fills_blanks,
            vocabulary_path=self._vocabulary_path,
            load_vocabulary=(lambda: self.tokenizer) if self.has_vocabulary else None,
        )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary that is also a `seqio.Vocabulary`. The first access loads it and imports TensorFlow.

        Raises:
          UserError: there is no vocabulary, or it has more tokens than the model.
        """
        _ = self.vocabulary_path
        return model_text.vocabulary(self._pretrained, in_seqio=True)

    @property
    def tokenizer(self) -> Vocabulary:
        """Vocabulary in plain Python, which does not import seqio and TensorFlow.

        Raises:
          UserError: there is no vocabulary, or it has more tokens than the model.
        """
        return self.vocabulary if "vocabulary" in vars(self) else self._tokenizer

    @cached_property
    def _tokenizer(self) -> Vocabulary:
        _ = self.vocabulary_path
        return model_text.vocabulary(self._pretrained)

    @property
    def has_vocabulary(self) -> bool:
        """Whether there is a vocabulary. Ids do not need one."""
        return self._origin.vocabulary is not None or "vocabulary" in vars(self)

    @property
    def vocabulary_path(self) -> str:
        """Paths of the vocabulary's files, joined by commas.

        Raises:
          MissingVocabularyError: there is no vocabulary.
        """
        path = self._vocabulary_path
        if path is None:
            raise MissingVocabularyError
        return path

    @property
    def _vocabulary_path(self) -> str | None:
        return None if self._origin.vocabulary is None else self._origin.vocabulary.partition(":")[2]

    @property
    def _pretrained(self) -> Pretrained:
        return dataclasses.replace(self._origin, model=self.config, params=self.params)

    def logits(
        self,
        tokens: Any,
        mask: Any = None,
        token_types: Any = None,
        decoder_tokens: Any = None,
        decoder_mask: Any = None,
        head: str | None = None,
    ) -> Float32[Array, "batch ..."]:
        """Returns the logits of a head of the model.

        By default these are the logits of the next tokens for a decoder, of the tokens at each position for an encoder,
        and of the decoder's next tokens for an encoder-decoder. A decoder that fills blanks attends to the whole row up
        to its first sop.

        Args:
          tokens: ids below the model's vocabulary size, [B, L]; for an encoder-decoder, the input of the encoder. An
            ELMo also accepts the characters of words, [B, L, C], as returned by `characters`, which need no vocabulary.
            For a task head, [B, N, L] are N texts per row, such as choices; all other inputs then have the same axes.
          mask: 1 for tokens, 0 for padding on either side, [B, L]; None if there is no padding.
          token_types: segment of a pair that each token belongs to, [B, L], for models with token types; None for 0.
          decoder_tokens: input of the decoder of an encoder-decoder, [B, L']. For a task head, the default is `tokens`
            after the start id.
          decoder_mask: mask of `decoder_tokens`, [B, L'].
          head: None for the head for tokens (in an ELECTRA, that of the generator), "sentence_pair" for the classes of
            a pair, "discriminator" for the detection of replaced tokens, "backward" for an ELMo's logits of the word
            before each position given the words from this position on, or "task" for the task of a fine-tuned model.

        Returns:
          float32 [B, L, V], for an encoder-decoder [B, L', V]. Values at padding are meaningless. For "sentence_pair",
          [B, 2]: whether the second sentence follows the first or not (BERT), or whether the sentences are in order or
          swapped (ALBERT). For "discriminator", [B, L], above 0 if a token was probably replaced. For "task": classes
          [B, C], a score [B, 1], tags [B, L, C], first and last token of a span [B, L, 2], or choices [B, N].

        Raises:
          UserError: an id is outside the vocabulary, there are more tokens than positions, rows have different lengths,
            shapes do not match, an input is missing or not supported, or the model lacks the head.
        """
        strategy = self.strategy
        name = strategy.head(head)
        read = strategy.read_texts if name == TASK else strategy.read
        return strategy.logits(read(tokens, mask, token_types, decoder_tokens, decoder_mask), name)

    def hidden_states(
        self,
        tokens: Any,
        mask: Any = None,
        token_types: Any = None,
        decoder_tokens: Any = None,
        decoder_mask: Any = None,
    ) -> Float32[Array, "states batch length width"]:
        """Returns the embeddings, then the output of each block, the last after the final norm.

        There are layers + 1 states. For an encoder-decoder, they are the states of the decoder if `decoder_tokens` are
        given, and the states of the encoder if not. For an ELMo, they are the concatenated forward and backward states,
        [layers + 1, B, L, 2 D]. The first state has the word vectors twice. The LSTMs start from zeros. The arguments
        and errors are those of `logits`.
        """
        strategy = self.strategy
        return strategy.hidden_states(strategy.read(tokens, mask, token_types, decoder_tokens, decoder_mask))

    def characters(
        self, texts: Sequence[str]
    ) -> tuple[Int32[np.ndarray, "batch length characters"], Int32[np.ndarray, "batch length"]]:
        """Returns the inputs of an ELMo for texts whose words are separated by white space.

        Every text is framed by `<S>` and `</S>`.

        Returns:
          The characters of each word, also of words that the vocabulary lacks, and a mask.
        """
        if not self.config.max_characters:
            raise UserError("this model has no characters as inputs: pass token ids")
        return words.sentences(texts, self.config.max_characters)

    def generate(
        self,
        prompts: Prompts,
        *,
        seed: int = 0,
        **options: Any,
    ) -> list[Any]:
        """Answers each prompt: texts with texts, ids with ids.

        A decoder returns the continuation without the prompt. Before the prompt, it reads the ids that began its texts
        in training. An empty prompt starts from these ids or, if there were none, from the separator of documents.

        A decoder that was trained to fill blanks (`[MASK]`, `[sMASK]` or `[gMASK]`) returns the prompt with every blank
        filled, or the continuation of a prompt without blanks.

        An encoder returns the prompt with the most probable token in place of each `[MASK]` or `<mask>`, like `fill`.

        An encoder-decoder returns its answer. If the prompt has blanks (`<extra_id_0>`, `<extra_id_1>` …), it returns
        the prompt with its answers in them. If it was trained to restore texts, its answer is the whole text, and
        `[MASK]` or `<mask>` in the prompt represents missing text.

        Ids, as lists or an array [B, L], are read without further ids around them and need no vocabulary. A decoder
        returns the ids that follow. An encoder-decoder returns the ids of its answer, without the ids that begin or end
        an answer. A model that fills blanks returns the prompt's ids with every mask replaced; there must be at least
        one.

        Args:
          prompts: texts or ids.
          seed: seed of the samples.
          options: fields of `config.DecodingConfig` such as `max_new_tokens`, `temperature` and `num_beams`; the
            defaults are those of the run's `evaluation.decoding`. An encoder takes none.

        Returns:
          One answer to each prompt, a text or ids like the prompt. With `num_return_sequences` above 1, a list of
          answers to each prompt, for beam search in descending order of score.

        Raises:
          UserError: a prompt or an option does not fit the model.
        """
        checked = inputs.prompts(prompts)
        in_text = all(isinstance(prompt, str) for prompt in checked)
        return self.strategy.generate(checked, in_text, seed=seed, **options)

    def writer(self, **options: Any) -> Callable[..., list[Any]]:
        """Returns a function from rows of ids to the ids that continue or answer each; options as in `generate`."""
        return self.strategy.writer(**options)

    def score(
        self,
        contexts: Prompts,
        continuations: Prompts,
    ) -> list[ContinuationScore]:
        """Scores each continuation of a context by the sum of its tokens' log-probabilities, in nats.

        For texts, a decoder tokenizes context and continuation together, and scores the tokens after those of the
        context. White space at the end of the context belongs to the continuation. An empty context means the ids that
        preceded texts in training. An encoder-decoder reads the context as a prompt and scores the continuation as its
        answer, without the ids that begin or end one. No special tokens are added around ids. If a context is too long,
        the model reads its last tokens.

        Returns:
          The log-likelihood of each continuation, and whether greedy decoding would produce it.

        Raises:
          UserError: contexts and continuations do not match, a continuation has no tokens or more than the model has
            positions, or the model does not continue text.
        """
        rows_before, rows_after = inputs.prompts(contexts), inputs.prompts(continuations)
        if len(rows_before) != len(rows_after):
            raise UserError(
                f"there are {len(rows_before)} contexts and {len(rows_after)} continuations: pass equally many"
            )
        if not rows_before:
            return []
        in_text = {isinstance(row, str) for row in (*rows_before, *rows_after)}
        if len(in_text) > 1:
            raise UserError("contexts are texts and continuations ids, or vice versa: pass one kind")
        strategy = self.strategy
        make_row: Callable[..., Any] = (
            strategy.text_continuation_row if in_text == {True} else strategy.continuation_row
        )
        rows = [make_row(*pair) for pair in zip(rows_before, rows_after, strict=True)]
        return [scores.score for scores in scoring.score_rows(strategy, rows)]

    def pseudo_log_likelihoods(
        self, texts: str | Sequence[str], word_l2r: bool = False
    ) -> list[Float[np.ndarray, " tokens"]]:
        """Returns the log-probability in nats, by a masked model, of each token of each text given all other tokens.

        Their sum is the text's pseudo-log-likelihood (Salazar et al. 2020). The model runs once per token.

        Args:
          word_l2r: whether the later pieces of the token's word are masked too (Kauf and Ivanova 2023); otherwise long
            words seem too probable.

        Raises:
          UserError: the model is not a masked model, or a text has too many tokens.
        """
        strategy = self.strategy
        encoded = [self.tokenizer.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        rows = [strategy.masked_rows(tokens, 0, word_l2r) for tokens in encoded]
        scores = iter(scoring.score_rows(strategy, [row for text_rows in rows for row in text_rows]))

        def text_scores(number: int, scores: Iterator[scoring.TokenScores]) -> np.ndarray:
            return np.array([next(scores).log_probabilities[0] for _ in range(number)], np.float32)

        return [text_scores(len(text_rows), scores) for text_rows in rows]

    def fill(self, texts: str | Sequence[str], top_k: int = 5) -> list[FilledText]:
        """Fills each `[MASK]` of each text with a masked model's most probable token, all masks of a text at once.

        Args:
          texts: texts with at least one `[MASK]` or `<mask>` each.
          top_k: number of candidates for each mask.

        Raises:
          UserError: the model is not a masked model, or a text has no `[MASK]` or too many tokens.
        """
        return self.strategy.fill([texts] if isinstance(texts, str) else texts, top_k)

    def embed(
        self,
        texts: str | Sequence[str],
        pooling: Pooling = "mean",
        layer: int = -1,
        normalize: bool = False,
        *,
        batch_size: int = 32,
        advance: Callable[[int], Any] = scoring.ignore_progress,
    ) -> Float32[np.ndarray, "texts width"] | Float32[np.ndarray, " width"]:
        """Returns a vector for each text, from the hidden states of its tokens; for a single text, one vector.

        Texts have the special tokens of training around them, which count as tokens, and are truncated to the model's
        length. An encoder-decoder returns states of its encoder. A text without tokens gets zeros.

        Args:
          texts: a text, or a sequence of texts.
          pooling: "mean" or "max" over tokens, "cls" for the first token, or "last" for the last one.
          layer: number of the layer; 0 is the embeddings, -1 the last layer.
          normalize: whether vectors are divided by their Euclidean norm.
          batch_size: number of texts in a batch.
          advance: called with the number of texts in each finished batch.

        Raises:
          UserError: there is no vocabulary, or no such pooling or layer.
        """
        several, limit = [texts] if isinstance(texts, str) else texts, self._pretrained.max_length
        vectors = embeddings.embed(self.strategy, limit, several, pooling, layer, normalize, batch_size, advance)
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(
        self, first: str | Sequence[str], second: str | Sequence[str], **options: Any
    ) -> Float32[np.ndarray, "first second"]:
        """Returns the cosine similarity of the embeddings of each pair of texts; `options` are those of `embed`."""
        return embeddings.similarity(*(np.atleast_2d(self.embed(texts, **options)) for texts in (first, second)))

    def predict(
        self,
        examples: Any,
        *,
        batch_size: int = 32,
        advance: Callable[[int], Any] = scoring.ignore_progress,
    ) -> Any:
        """Returns a prediction for each example; for a single example, one prediction.

        A model with a task head predicts what it was fine-tuned for. Other models fill the blanks of each text,
        continue it or answer it, as `generate` does. Texts that are too long are truncated; contexts of questions are
        split into windows, as in `evaluate`.

        Args:
          examples: an example, or a list of examples. A text or a pair of texts for classes, labels and scores; a text
            or a list of words for tags; a question and a context for answers; a question and a list of texts for
            choices. Pairs are tuples, or dicts with two entries in this order; dicts with `question` and `context`
            or `choices` may have any order. A single list of words must be in another list.
          batch_size: number of rows in a batch.
          advance: called with the number of rows in each finished batch.

        Returns:
          A list with one prediction per example, or the prediction of a single example, of the class in
          `plm_jax.inference.predictions` for the task: `ClassPrediction`, `LabelsPrediction`, `ScorePrediction`,
          `TagPrediction`, `AnswerPrediction`, `ChoicePrediction` or, without a task head, `TextPrediction`.

        Raises:
          UserError: there is no vocabulary, or an example does not fit the task.
        """
        if isinstance(examples, str | tuple | Mapping):
            (prediction,) = self.predict([examples], batch_size=batch_size, advance=advance)
            return prediction
        head = tasks.head_of(self.config)
        if head is None:
            return [TextPrediction(text) for text in self._answers(list(examples), batch_size, advance)]
        predictor = Predictor(self._pretrained, head, self.model, self.tokenizer, batch_size)
        return predictor.predict(examples, advance)

    def _answers(self, texts: list[str], batch_size: int, advance: Callable[[int], Any]) -> Iterator[str]:
        """Yields the answer to each text."""
        for prompt_answers in prompt_files.answer(self, texts, batch_size, seed=0):
            yield prompt_answers[1][0]
            advance(1)

    def save(
        self,
        directory: str | os.PathLike[str],
        format: str = "huggingface",
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
    ) -> None:
        """Writes the model and its vocabulary so that `plm_jax.load` opens it.

        Args:
          directory: local or in a bucket.
          format: "huggingface", for `transformers`, including its AutoTokenizer; "sentence-transformers", whose
            embeddings equal those of `embed`, without the heads of an encoder; "plm_jax", which preserves every setting
            and the run of a model that plm_jax trained; or "bilm", for bilm-tf and AllenNLP (ELMo only).
          pooling, normalize: arguments of `embed`, for sentence-transformers.

        Raises:
          UserError: the format is unknown or does not support the model or its vocabulary.
        """
        embeddings.check_pooling(pooling)
        checkpoint_formats.save(os.fspath(directory), self._pretrained, format, pooling=pooling, normalize=normalize)


def load(
    path: str | os.PathLike[str] | tuple[str, str], modules: Sequence[str] = (), *, average: bool = False
) -> LanguageModel:
    """Loads a run directory, one of its checkpoints, a converted, Hugging Face or bilm-tf directory, or `hf:ORG/NAME`.

    Args:
      path: directory, whose format is recognized by its files; repository of the Hugging Face Hub, `hf:ORG/NAME` or
        `hf:ORG/NAME@REVISION`, which is downloaded; or the paths of an ELMo's options and weights.
      modules: Python files or modules with the user's classes that the model uses.
      average: whether to load the moving average of the weights (`train.average`) of a run or checkpoint.

    Raises:
      UserError: the path does not exist or contains no model, a repository cannot be downloaded, a file is missing or
        damaged, or the model needs code of the user that is not in `modules`.
    """
    for module in modules:
        users.load(module)
    with checkpoint_formats.opened(path, average) as pretrained:
        params = jax.tree.map(float32, pretrained.params)
        names = ("run", "workdir", "step", "vocabulary_id", "special_ids", "family", "hub_files")
        origin = {name: getattr(pretrained, name) for name in names}
        return LanguageModel(pretrained.model, params, vocabulary_spec=pretrained.vocabulary, **origin)
