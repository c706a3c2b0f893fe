"""A loaded model and its Python interface: `lm = plm_jax.load(path)`."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import words
from plm_jax.generation import inputs, scoring, strategies
from plm_jax.hub.pretrained import Pretrained, float32
from plm_jax.inference import blanks
from plm_jax.models import registry
from plm_jax.models.heads import TASK
from plm_jax.models.protocol import ModelConfig, Module
from plm_jax.runs import checkpoint_formats, model_text

if TYPE_CHECKING:
    import seqio

    from plm_jax.data import vocabularies

VOCABULARY_FILES = (
    "tokenizer.json; GPT-2: vocab.json, merges.txt; BERT: vocab.txt; T5: spiece.model; ELMo: vocabulary.txt"
)


class LanguageModel:
    """A trained model with its parameters and, where it has one, its vocabulary.

    Attributes:
      config: the model's settings.
      params: the parameters, float32.
      run, workdir, step, vocabulary_id, special_ids: as in `hub.pretrained.Pretrained`.
    """

    def __init__(
        self, config: ModelConfig, params: Mapping[str, Any], *, vocabulary_spec: str | None = None, **known: Any
    ):
        """`vocabulary_spec` is what `vocabularies.load` takes, `known` are further fields of `Pretrained`."""
        self.config, self.params = config, jax.tree.map(jnp.asarray, params)
        self._known = Pretrained(config, {}, vocabulary=vocabulary_spec, **known)
        self.run, self.workdir, self.step = self._known.run, self._known.workdir, self._known.step
        self.vocabulary_id, self.special_ids = self._known.vocabulary_id, dict(self._known.special_ids)

    @cached_property
    def model(self) -> Module:
        """The Linen module, computing in float32: `lm.model.apply({"params": lm.params}, tokens, mask)`."""
        return registry.build(self.config)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained; tied weights count once."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @property
    def strategy(self) -> strategies.Strategy:
        """How the model reads and writes."""
        return strategies.of(self)

    @cached_property
    def vocabulary(self) -> "seqio.Vocabulary":
        """The vocabulary as a `seqio.Vocabulary`, loaded when first asked for.

        Raises:
          UserError: there is none, or it has more tokens than the model.
        """
        _ = self.vocabulary_path
        return model_text.vocabulary(self._pretrained, in_seqio=True)

    @property
    def tokenizer(self) -> "vocabularies.Vocabulary":
        """The vocabulary in plain Python: what reads and writes text here, without seqio and so TensorFlow.

        Raises:
          UserError: as `vocabulary`.
        """
        return self.vocabulary if "vocabulary" in vars(self) else self._tokenizer

    @cached_property
    def _tokenizer(self) -> "vocabularies.Vocabulary":
        _ = self.vocabulary_path
        return model_text.vocabulary(self._pretrained)

    @property
    def has_vocabulary(self) -> bool:
        """Whether there is a vocabulary; ids need none."""
        return self._known.vocabulary is not None or "vocabulary" in vars(self)

    @property
    def vocabulary_path(self) -> str:
        """The paths of the vocabulary's files, joined by commas.

        Raises:
          UserError: there is none.
        """
        if self._known.vocabulary is None:
            raise UserError(f"the model has no vocabulary beside it: put its files there ({VOCABULARY_FILES})")
        return self._known.vocabulary.partition(":")[2]

    @property
    def _pretrained(self) -> Pretrained:
        return dataclasses.replace(self._known, model=self.config, params=self.params)

    def logits(
        self, tokens, mask=None, token_types=None, decoder_tokens=None, decoder_mask=None, head: str | None = None
    ) -> jax.Array:
        """Scores of the tokens: the next ones, the masked ones of an encoder, the decoder's of an encoder-decoder.

        Args:
          tokens: [B, L], ids below the model's vocabulary size; an encoder-decoder's input. An ELMo takes the words'
            characters too, [B, L, C], as `characters` gives them, and then needs no vocabulary. For the head of a task
            [B, N, L] are N texts a row, such as choices, and all other inputs then have these axes, too.
          mask: [B, L], 1 for real tokens, 0 for padding on either side; None: all are real.
          token_types: [B, L], which part of a pair each token is of, for a model that tells them apart; None: all 0.
          decoder_tokens: [B, L'], what the decoder reads, for an encoder-decoder; for the head of a task by default
            `tokens` again, after what its texts start with.
          decoder_mask: [B, L'], as `mask`.
          head: None, in an ELECTRA the generator's; "sentence_pair" for the classes of a pair; "discriminator" for
            which tokens were replaced; "backward" for an ELMo's scores of the word before each place, from those from
            it on; "task" for what the model was fine-tuned for.

        A decoder that fills blanks sees all of a row up to its first sop, see `infilling.places`.

        Returns:
          float32 [B, L, V], of an encoder-decoder [B, L', V]; at padding the values mean nothing. [B, 2] for
          "sentence_pair", for BERT: is the second the sentence after the first, is it not; for ALBERT: are they in
          their order, are they swapped. [B, L] for "discriminator", above 0 where a token seems replaced. For "task":
          classes [B, C], a score [B, 1], tags [B, L, C], a span's first and last token [B, L, 2], choices [B, N].

        Raises:
          UserError: an id outside of the vocabulary, more tokens than positions, rows of different lengths, shapes that
            do not fit, inputs that the model does not take or lacks, a head that it does not have.
        """
        strategy = self.strategy
        name = strategy.head(head)
        read = strategy.read_texts if name == TASK else strategy.read
        return strategy.logits(read(tokens, mask, token_types, decoder_tokens, decoder_mask), name)

    def hidden_states(self, tokens, mask=None, token_types=None, decoder_tokens=None, decoder_mask=None) -> jax.Array:
        """Float32 [layers + 1, B, L, D]: embeddings, then each block, the last after the final norm.

        Of an encoder-decoder the decoder's, [layers + 1, B, L', D], where decoder_tokens are given, else the encoder's.
        Of an ELMo forward and backward side by side, [layers + 1, B, L, 2 D], the words' vectors twice; its LSTMs begin
        from zeros. Arguments and errors as `logits`.
        """
        strategy = self.strategy
        return strategy.hidden_states(strategy.read(tokens, mask, token_types, decoder_tokens, decoder_mask))

    def characters(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """What an ELMo reads of texts, words with white space between, each framed by `<S>` and `</S>`.

        Returns:
          Characters int32 [B, L, C], also of words that the vocabulary lacks, and a mask int32 [B, L].
        """
        if not self.config.max_characters:
            raise UserError("this model reads no characters: give the ids of tokens")
        return words.sentences(texts, self.config.max_characters)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        seed: int = 0,
        **options: Any,
    ) -> list[Any]:
        """What the model makes of each prompt: texts of texts, ids of ids.

        A decoder gives the continuation, without the prompt; before that it reads what began its texts in training. An
        empty prompt starts from there or, where nothing did, from what stood between documents. One that was trained to
        fill blanks, written `[MASK]`, `[sMASK]` or `[gMASK]`, gives the prompt with all of them filled, or the
        continuation if it has none. An encoder gives the prompt with the most probable token in place of each `[MASK]`
        or `<mask>` (see `fill`). An encoder-decoder gives its answer, but where the prompt has blanks, written
        `<extra_id_0>`, `<extra_id_1>` …, the prompt with what it answers for them put in. Where it was trained to mend
        texts, its answer is the whole text, and `[MASK]` or `<mask>` in the prompt stands for what is missing.

        Ids, as lists or an array [B, L], are taken as they are, nothing put before or behind them, and need no
        vocabulary. A decoder gives the ids that follow, an encoder-decoder those of its answer, without what begins or
        ends it; what fills blanks gives the prompt's ids with those of the masks replaced, of which there must be one.

        Args:
          prompts: texts or ids.
          seed: of samples.
          options: fields of `config.DecodingConfig` such as `max_new_tokens`, `temperature` and `num_beams`;
            what is not given is as the run's `evaluation.decoding` has it. An encoder takes none.

        Returns:
          One answer to each prompt, of the kind that the prompts are; with `num_return_sequences` above 1 a list of
          answers to each, of beams the best first.

        Raises:
          UserError: as `decoding.generate`, an option that there is not, or that does nothing for such a model.
        """
        prompts = inputs.prompts(prompts)
        return self.strategy.generate(prompts, all(isinstance(prompt, str) for prompt in prompts), seed=seed, **options)

    def writer(self, **options: Any) -> Callable[..., list[Any]]:
        """From rows of tokens to the tokens that follow or answer each; options as of `generate`."""
        return self.strategy.writer(**options)

    def score(
        self,
        contexts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        continuations: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
    ) -> list[scoring.ContinuationScore]:
        """How probable each continuation is after its context: the sum over its tokens, nats, and whether it is greedy.

        Of texts, what a decoder is asked for is what the tokens of both together have behind those of the context, to
        whose end no white space belongs; an empty context is what stood before texts in training. An encoder-decoder
        reads the context as a prompt and is asked for the continuation as its answer, without what begins or ends one.
        Ids are taken as they are. Of a context that is too long the last tokens are read.

        Raises:
          UserError: contexts and continuations that do not go together, a continuation without tokens or with more than
            the model's positions, a model that continues no text.
        """
        contexts, continuations = inputs.prompts(contexts), inputs.prompts(continuations)
        if len(contexts) != len(continuations):
            raise UserError(f"there are {len(contexts)} contexts and {len(continuations)} continuations: give as many")
        if not contexts:
            return []
        in_text = {isinstance(given, str) for given in (*contexts, *continuations)}
        if len(in_text) > 1:
            raise UserError("contexts are texts and continuations ids, or the other way round: give one kind")
        strategy = self.strategy
        row_of = strategy.continuation_of_text if in_text == {True} else strategy.continuation
        rows = [row_of(*pair) for pair in zip(contexts, continuations, strict=True)]
        return [told.score for told in scoring.tell(strategy, rows)]

    def pseudo_log_likelihoods(self, texts: str | Sequence[str], word_l2r: bool = False) -> list[np.ndarray]:
        """Of each token of each text its log-probability, nats, where a masked model sees all others: float32 [tokens].

        Their sum is the text's pseudo-log-likelihood (Salazar et al. 2020). A model has as many passes as tokens.

        Args:
          word_l2r: whether the pieces of the same word behind a token are hidden, too (Kauf and Ivanova 2023), without
            which long words seem too probable.

        Raises:
          UserError: the model is no masked one, or a text has too many tokens.
        """
        strategy = self.strategy
        encoded = [self.tokenizer.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        rows = [strategy.masked(tokens, 0, word_l2r) for tokens in encoded]
        told = iter(scoring.tell(strategy, [row for of_text in rows for row in of_text]))
        return [np.array([next(told).log_probabilities[0] for _ in of_text], np.float32) for of_text in rows]

    def fill(self, texts: str | Sequence[str], top_k: int = 5) -> list[blanks.Filled]:
        """Fills each `[MASK]` of each text with a masked model's most probable token, all of a text at once.

        Args:
          texts: each with one `[MASK]` or more; `<mask>` is the same.
          top_k: how many candidates to give for each.

        Raises:
          UserError: the model is no masked one, a text has no `[MASK]` or too many tokens.
        """
        return self.strategy.fill([texts] if isinstance(texts, str) else texts, top_k)

    def save(self, directory: str | os.PathLike[str], format: str = "huggingface") -> None:
        """Writes the model and its vocabulary so that `plm_jax.load` opens it.

        Args:
          directory: local or in a bucket.
          format: "huggingface", which `transformers` opens, its AutoTokenizer too, see `exported.export`;
            "plm_jax", which keeps every setting and, of a model that was trained here, its run; "bilm", for bilm-tf and
            AllenNLP, which holds an ELMo alone.

        Raises:
          UserError: an unknown format, or a model or a vocabulary that it does not hold.
        """
        checkpoint_formats.save(os.fspath(directory), self._pretrained, format)


def load(path: str | os.PathLike[str] | tuple[str, str], modules: Sequence[str] = ()) -> LanguageModel:
    """Opens a run directory, one of its checkpoints, a converted, a Hugging Face or a bilm-tf directory: the files say.

    Also an ELMo's options and weights, as a pair of paths.

    Args:
      modules: Python files or modules with code of one's own that the model is made with.

    Raises:
      UserError: there is no such path, it holds no model, a file of it is missing or damaged, or it takes code of a
        user's that is not among `modules`.
    """
    for given in modules:
        users.load(given)
    with checkpoint_formats.opened(path) as pretrained:
        params = jax.tree.map(float32, pretrained.params)
        names = ("run", "workdir", "step", "vocabulary_id", "special_ids", "family", "hub_files")
        known = {name: getattr(pretrained, name) for name in names}
        return LanguageModel(pretrained.model, params, vocabulary_spec=pretrained.vocabulary, **known)
