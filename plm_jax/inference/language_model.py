"""The Python interface of a loaded model: `lm = plm_jax.load(path)`."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32, Integer

from plm_jax.common import progress, users
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
    """A trained model with its parameters and, if there is one, its vocabulary.

    Attributes:
      config: settings of the model.
      params: parameters; float32 if `load` has read them.
      run, workdir, step, vocabulary_id, special_ids: as in `hub.pretrained.Pretrained`.
    """

    def __init__(
        self, config: ModelConfig, params: Mapping[str, Any], *, vocabulary_spec: str | None = None, **origin: Any
    ):
        """Initializes a model.

        Args:
          config: settings of the model.
          params: parameters.
          vocabulary_spec: spec for `vocabularies.load`; None if there is no vocabulary.
          origin: other fields of `hub.pretrained.Pretrained`.
        """
        self.config, self.params = config, jax.tree.map(jnp.asarray, params)
        self._origin = Pretrained(config, {}, vocabulary=vocabulary_spec, **origin)
        self.run, self.workdir, self.step = self._origin.run, self._origin.workdir, self._origin.step
        self.vocabulary_id, self.special_ids = self._origin.vocabulary_id, dict(self._origin.special_ids)

    def __repr__(self) -> str:
        """Returns a string with the family, size, vocabulary, heads and origin of the model."""
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
        """Linen module that computes in float32, as in `lm.model.apply({"params": lm.params}, tokens, mask)`."""
        return registry.build(self.config)

    @property
    def num_parameters(self) -> int:
        """Number of parameters; tied weights count once."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @property
    def strategy(self) -> Strategy:
        """Strategy that runs inference with the model's architecture."""
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
        """Vocabulary that is also a `seqio.Vocabulary`. The first access loads the vocabulary and imports TensorFlow.

        Raises:
          UserError: there is no vocabulary, or it does not fit the model.
        """
        _ = self.vocabulary_path
        return model_text.vocabulary(self._pretrained, in_seqio=True)

    @property
    def tokenizer(self) -> Vocabulary:
        """Vocabulary in plain Python; loading it does not import seqio and TensorFlow.

        Raises:
          UserError: there is no vocabulary, or it does not fit the model.
        """
        return self.vocabulary if "vocabulary" in vars(self) else self._tokenizer

    @cached_property
    def _tokenizer(self) -> Vocabulary:
        _ = self.vocabulary_path
        return model_text.vocabulary(self._pretrained)

    @property
    def has_vocabulary(self) -> bool:
        """Whether there is a vocabulary."""
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

        By default, a decoder and an encoder-decoder return logits for the next token after each (decoder) position, and
        an encoder for the token at each position. In a decoder that fills blanks (GLM), all tokens attend to every
        token before the first `sop` (start of piece) of the row, or to the whole row if the row has no `sop`.

        Args:
          tokens: ids below the model's vocabulary size, [B, L]; for an encoder-decoder, the input of the encoder. An
            ELMo also accepts characters of words, [B, L, C], as returned by `characters`; they need no vocabulary. A
            task head also accepts [B, N, L] with N texts per row, such as choices; all other inputs then also have an
            axis of texts.
          mask: 1 for tokens, 0 for padding on either side, [B, L]; None if there is no padding.
          token_types: [B, L], such as 0 for the first text of a pair and 1 for the second; only for models with token
            types. None: 0 everywhere.
          decoder_tokens: input of the decoder of an encoder-decoder, [B, L']. For a task head, the default is the start
            id followed by `tokens` without the last token.
          decoder_mask: mask of `decoder_tokens`, [B, L'].
          head: name of the head. None: prediction of tokens (in an ELECTRA, by the generator). "sentence_pair": classes
            of a pair. "discriminator": detection of replaced tokens. "backward": an ELMo's prediction of the word
            before each position from the words at and after this position. "task": the task of a fine-tuned model.

        Returns:
          float32 [B, L, V], for an encoder-decoder [B, L', V]. Values at padding are meaningless. For "sentence_pair",
          [B, 2] with the logits of two classes. In a BERT, the second sentence follows the first, or it does not. In an
          ALBERT, the sentences are in order, or they are swapped. For "discriminator", [B, L], above 0 for tokens that
          were probably replaced. For "task": classes or labels [B, C], a score [B, 1], tags [B, L, C], first and last
          token of a span [B, L, 2], or choices [B, N].

        Raises:
          UserError: an id is outside the vocabulary, a row has more tokens than the model has positions, rows have
            different lengths, shapes do not match, an input is missing or not supported, or the model lacks the head.
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
        """Returns the embeddings and the output of each layer, layers + 1 states.

        If the model has a final norm, the norm is applied to the last output. An encoder-decoder returns the states of
        the decoder if `decoder_tokens` is passed, otherwise the states of the encoder. An ELMo returns concatenated
        forward and backward states, [layers + 1, B, L, 2 D]; the first state contains the word vectors twice, and the
        LSTMs start from zeros. The arguments and errors are the same as for `logits`.
        """
        strategy = self.strategy
        return strategy.hidden_states(strategy.read(tokens, mask, token_types, decoder_tokens, decoder_mask))

    def characters(
        self, texts: Sequence[str]
    ) -> tuple[Int32[np.ndarray, "batch length characters"], Int32[np.ndarray, "batch length"]]:
        """Returns the inputs of an ELMo for texts whose words are separated by white space.

        Every text is framed by `<S>` and `</S>`.

        Returns:
          A pair: the characters of each word, including words that the vocabulary lacks, and a mask.

        Raises:
          UserError: the model is not an ELMo.
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
        """Generates an answer to each prompt: a text for a text, ids for ids.

        A decoder returns the continuation without the prompt. Before the prompt, the decoder reads the ids with which
        texts began in training. If there are no such ids, an empty prompt is replaced by the separator of documents.

        A decoder that was trained to fill blanks (`[MASK]`, `[sMASK]` or `[gMASK]`) returns the prompt with every blank
        filled, or the continuation of a prompt without blanks.

        An encoder returns the prompt with the most probable token in place of each `[MASK]` or `<mask>`, like `fill`.

        An encoder-decoder returns its answer. If the prompt has blanks (`<extra_id_0>`, `<extra_id_1>` …), it returns
        the prompt with the blanks filled. If the model was trained to restore texts, its answer is the whole text, and
        `[MASK]` or `<mask>` in the prompt represents missing text.

        Prompts of ids are lists or an array [B, L]. They need no vocabulary, and no further ids are added around them.
        A decoder returns the ids that follow. An encoder-decoder returns the ids of its answer, without the ids that
        begin or end an answer. A model that fills blanks returns the prompt's ids with every mask replaced; the prompt
        must contain at least one mask.

        Args:
          prompts: texts or ids.
          seed: seed of the samples.
          options: fields of `config.DecodingConfig` such as `max_new_tokens`, `temperature` and `num_beams`; the
            defaults are the values in the run's `evaluation.decoding`. An encoder accepts no options.

        Returns:
          A list with one answer per prompt, a text or ids like the prompt. With `num_return_sequences` above 1, each
          entry is a list of answers. Beam search sorts these answers by descending score.

        Raises:
          UserError: a prompt or an option does not fit the model.
        """
        checked = inputs.prompts(prompts)
        in_text = all(isinstance(prompt, str) for prompt in checked)
        return self.strategy.generate(checked, in_text, seed=seed, **options)

    def writer(self, **options: Any) -> Callable[..., list[Any]]:
        """Returns a function that generates continuations of rows of ids, or answers to them.

        The function returns the ids of an answer for each row, or a list of answers if `num_return_sequences` is above
        1.

        Args:
          options: arguments of `Strategy.writer`: `settings`, `seed`, and fields of `config.DecodingConfig`.
        """
        return self.strategy.writer(**options)

    def score(
        self,
        contexts: Prompts,
        continuations: Prompts,
    ) -> list[ContinuationScore]:
        """Scores each continuation of a context by the sum of its tokens' log-probabilities, in nats.

        For texts, a decoder tokenizes context and continuation together, and scores the tokens after the tokens of the
        context. A decoder that fills blanks (GLM) tokenizes them separately. White space at the end of the context
        belongs to the continuation. In a decoder, an empty context is replaced by the ids that preceded texts in
        training or, if there are none, by the separator of documents. An encoder-decoder reads the context as a prompt
        and scores the continuation as its answer; the ids that begin or end an answer are not scored. No special tokens
        are put around contexts that are passed as ids. A context that is too long is cut to its last tokens.

        Returns:
          A list with the log-likelihood of each continuation, and whether greedy decoding would produce the
          continuation.

        Raises:
          UserError: contexts and continuations differ in number or kind, a continuation has no tokens or too many
            tokens, or the model does not continue text.
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
        """Returns a masked model's log-probability, in nats, of each token given all other tokens of its text.

        The sum over the tokens of a text is the text's pseudo-log-likelihood (Salazar et al. 2020). The model reads one
        row per token.

        Args:
          texts: a text, or a sequence of texts.
          word_l2r: whether the later pieces of the token's word are masked too (Kauf and Ivanova 2023). If False, long
            words seem too probable.

        Returns:
          A list with one array per text; a single text gives a list with one array.

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
        """Fills each `[MASK]` with a masked model's most probable token. All masks of a text are filled at once.

        Args:
          texts: a text, or a sequence of texts. Each text has at least one `[MASK]` or `<mask>`.
          top_k: number of candidates for each mask, at least 1.

        Returns:
          A list with the filled text and the candidates for each text.

        Raises:
          UserError: the model is not a masked model, `top_k` is below 1, or a text has no mask or too many tokens.
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
        """Returns one vector per text, computed from the hidden states of its tokens. A single text gives one vector.

        Special tokens are added around each text as in training, and count as tokens. Texts are truncated to the
        model's length. For an encoder-decoder, the hidden states come from the encoder. A text without tokens gets a
        vector of zeros.

        Args:
          texts: a text, or a sequence of texts.
          pooling: "mean" or "max" over tokens, "cls" for the first token, or "last" for the last token.
          layer: index of the layer: 0 for the embeddings, -1 for the last layer.
          normalize: whether vectors are divided by their Euclidean norm.
          batch_size: number of texts in a batch.
          advance: called with the number of texts in each finished batch.

        Raises:
          UserError: there is no vocabulary, an item is not a text, or `pooling` or `layer` does not exist.
        """
        several, limit = [texts] if isinstance(texts, str) else texts, self._pretrained.max_length
        vectors = embeddings.embed(self.strategy, limit, several, pooling, layer, normalize, batch_size, advance)
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(
        self, first: str | Sequence[str], second: str | Sequence[str], **options: Any
    ) -> Float32[np.ndarray, "first second"]:
        """Returns the cosine similarity between the embeddings of each text in `first` and each text in `second`.

        A single text counts as a sequence of one text.

        Args:
          options: further arguments of `embed`.
        """
        return embeddings.similarity(*(np.atleast_2d(self.embed(texts, **options)) for texts in (first, second)))

    def predict(
        self,
        examples: Any,
        *,
        batch_size: int = 32,
        advance: Callable[[int], Any] = scoring.ignore_progress,
    ) -> Any:
        """Returns a prediction for each example; for a single example, one prediction.

        A model with a task head performs the task that it was fine-tuned for. Texts that are too long are then
        truncated; contexts of questions are split into windows instead, as in `evaluate`. A model without a task head
        fills the blanks of each text, continues the text or answers it, like `generate`.

        Args:
          examples: an example, or a list of examples. An example is a text or a pair of texts for classes, labels and
            scores; a text or a list of words for tags; a question and a context for answers; a question and a list of
            texts for choices. A pair is a tuple, or a dict with two entries in the order of the pair. A dict with
            `question` and `context` or `choices` may have any order. To tag one list of words, pass `[words]`.
          batch_size: number of rows in a batch.
          advance: called with the number of rows that were finished since the last call.

        Returns:
          A list with one prediction per example, or one prediction for a single example. The class of a prediction, in
          `plm_jax.inference.predictions`, depends on the task: `ClassPrediction`, `LabelsPrediction`,
          `ScorePrediction`, `TagPrediction`, `AnswerPrediction`, `ChoicePrediction` or, without a task head,
          `TextPrediction`.

        Raises:
          UserError: there is no vocabulary, an example does not fit the task, or a text is too long for a model without
            a task head.
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
        """Writes the model and its vocabulary to a directory that `plm_jax.load` can read.

        Args:
          directory: local directory, or directory in a bucket.
          format: format of the files. "huggingface": for `transformers`, including its AutoTokenizer.
            "sentence-transformers": for embeddings that equal the result of `embed`; the heads of an encoder are left
            out. "plm_jax": preserves every setting and, if plm_jax trained the model, the run. "bilm": for bilm-tf and
            AllenNLP (ELMo only).
          pooling, normalize: arguments of `embed`, for sentence-transformers.

        Raises:
          UserError: the format or the pooling is unknown, or the format does not support the model or its vocabulary.
        """
        embeddings.check_pooling(pooling)
        checkpoint_formats.save(os.fspath(directory), self._pretrained, format, pooling=pooling, normalize=normalize)


def report_step(lm: LanguageModel, path: str) -> None:
    """Prints the step of the run that a model comes from; prints nothing if the step is unknown."""
    if lm.step is not None and lm.run is not None and progress.is_first():
        print(f"{path}: weights of step {lm.step:,} of {lm.run.train.steps:,}", file=sys.stderr, flush=True)


def load(
    path: str | os.PathLike[str] | tuple[str, str], modules: Sequence[str] = (), *, average: bool = False
) -> LanguageModel:
    """Loads a model from a run or another directory, or from a repository of the Hugging Face Hub.

    Args:
      path: a run directory, one of its checkpoints, a converted model, or a directory in the format of Hugging Face or
        bilm-tf; the files of the directory determine the format. Or a repository of the Hugging Face Hub, which is
        downloaded, as `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`. Or a pair: the paths of an ELMo's options and weights.
      modules: Python files or modules with the user's classes that the model uses.
      average: whether to load the moving average of the weights (`train.average`), which a run or checkpoint may have.

    Raises:
      UserError: the path does not exist or contains no model, a repository cannot be downloaded, a file is missing or
        damaged, there is no average, or the model needs code of the user that is not in `modules`.
    """
    for module in modules:
        users.load(module)
    with checkpoint_formats.opened(path, average) as pretrained:
        params = jax.tree.map(float32, pretrained.params)
        names = ("run", "workdir", "step", "vocabulary_id", "special_ids", "family", "hub_files")
        origin = {name: getattr(pretrained, name) for name in names}
        return LanguageModel(pretrained.model, params, vocabulary_spec=pretrained.vocabulary, **origin)
