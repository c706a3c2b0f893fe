"""A trained model in one's hands: `lm = plm_jax.load(path)`."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common import users
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.vocabularies import words
from plm_jax.hub.pretrained import Pretrained, float32
from plm_jax.inference import blanks, decoding, infilling, inputs
from plm_jax.models import electra, registry, settings
from plm_jax.models.architecture import Architecture
from plm_jax.training import exports, sources

if TYPE_CHECKING:
    import seqio

    from plm_jax.config import Run


# By the name of a head in `LanguageModel.logits`: what people call it, and the module's method for it.
HEADS = {
    None: ("vocabulary", "logits"),
    "sentence_pair": ("sentence-pair", "pair_logits"),
    "discriminator": ("discriminator", "discriminator_logits"),
    "backward": ("backward", "backward_logits"),
}


@partial(jax.jit, static_argnames=("model", "method"))
def _logits(model, params, inputs, method):
    features = model.apply({"params": params}, **inputs, method="features")
    return model.apply({"params": params}, features, method=method)


@partial(jax.jit, static_argnames=("model", "method", "embedded", "stack"))
def _hidden_states(model, params, inputs, method, embedded, stack):
    features, sown = model.apply({"params": params}, **inputs, method=method, mutable=["intermediates"])
    (first,) = sown["intermediates"][embedded]
    (hidden,) = sown["intermediates"][stack]["hidden"]
    return jnp.concatenate([first[None], hidden[:-1], features[None]]).astype(jnp.float32)


@partial(jax.jit, static_argnames=("model",))
def _elmo_layers(model, params, inputs):
    layers, _ = model.apply({"params": params}, **inputs, method="layers")
    return jnp.concatenate([layers[:, :, 0], layers[:, :, 1]], axis=-1).astype(jnp.float32)


class LanguageModel:
    """A model with its parameters and, where it has one, its vocabulary.

    Attributes:
      config: the model's settings.
      params: the parameters, float32.
      run: the whole config of the run that trained it; None for a model from elsewhere.
      workdir: the run's directory; None for a model from elsewhere.
      step: the checkpoint's step; None for a model from elsewhere.
      vocabulary_id: of the vocabulary that it was trained with, where that is recorded.
      special_ids: `bos_token_id`, `eos_token_id` (an integer or several), `pad_token_id`, `cls_token_id`,
        `sep_token_id`, `mask_token_id`, `decoder_start_token_id`, `sentinels` (how many), `begins_with_bos` (whether
        every text does) or `begins_with` (the ids that it does), `lowercase` (whether WordPiece or SentencePiece
        drops case and accents), of a model that fills blanks also `sop_token_id`, `eop_token_id`, `smask_token_id` and
        `gmask_token_id`, as far as they are known.
    """

    def __init__(
        self,
        config: settings.Transformer,
        params: Mapping[str, Any],
        *,
        run: "Run | None" = None,
        workdir: str | None = None,
        step: int | None = None,
        vocabulary_spec: str | None = None,
        vocabulary_id: str | None = None,
        special_ids: Mapping[str, Any] | None = None,
        family: str | None = None,
    ):
        """`vocabulary_spec` is what `vocabularies.load` takes, `family` the Hugging Face model_type that it had."""
        self.config = config
        self.params = jax.tree.map(jnp.asarray, params)
        self.run = run
        self.workdir = workdir
        self.step = step
        self.vocabulary_id = vocabulary_id
        self.special_ids = dict(special_ids or {})
        self._vocabulary_spec = vocabulary_spec
        self._family = family

    @cached_property
    def model(self) -> Architecture:
        """The Linen module, computing in float32: `lm.model.apply({"params": lm.params}, tokens, mask)`."""
        return registry.build(self.config)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained; tied weights count once."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @cached_property
    def vocabulary(self) -> "seqio.Vocabulary":
        """The vocabulary, loaded when first asked for.

        Raises:
          UserError: there is none, or it has more tokens than the model.
        """
        if self._vocabulary_spec is None:
            raise self._no_vocabulary()
        return exports.vocabulary(self._pretrained, self.run)

    @property
    def _pretrained(self) -> Pretrained:
        return Pretrained(self.config, self.params, self.special_ids, self._vocabulary_spec, self._family)

    @property
    def _known_vocabulary(self) -> "seqio.Vocabulary | None":
        """The vocabulary, None if there is none: ids need none."""
        return self.vocabulary if self._vocabulary_spec is not None or "vocabulary" in vars(self) else None

    def _no_vocabulary(self) -> UserError:
        files = "tokenizer.json; GPT-2: vocab.json, merges.txt; BERT: vocab.txt; T5: spiece.model; ELMo: vocabulary.txt"
        return UserError(f"the model has no vocabulary beside it: put its files there ({files})")

    def logits(
        self, tokens, mask=None, token_types=None, decoder_tokens=None, decoder_mask=None, head: str | None = None
    ) -> jax.Array:
        """Scores of the tokens: the next ones, the masked ones of an encoder, the decoder's of an encoder-decoder.

        Args:
          tokens: [B, L], ids below the model's vocabulary size; an encoder-decoder's input. An ELMo takes the words'
            characters too, [B, L, C], as `characters` gives them, and then needs no vocabulary.
          mask: [B, L], 1 for real tokens, 0 for padding on either side; None: all are real.
          token_types: [B, L], which part of a pair each token is of, for a model that tells them apart; None: all 0.
          decoder_tokens: [B, L'], what the decoder reads, for an encoder-decoder.
          decoder_mask: [B, L'], as `mask`.
          head: None, in an ELECTRA the generator's; "sentence_pair" for the classes of a pair; "discriminator" for
            which tokens were replaced; "backward" for an ELMo's scores of the word before each place, from those from
            it on.

        A decoder that fills blanks sees all of a row up to its first sop, see `infilling.places`.

        Returns:
          float32 [B, L, V], of an encoder-decoder [B, L', V]; at padding the values mean nothing. [B, 2] for
          "sentence_pair", for BERT: is the second the sentence after the first, is it not; for ALBERT: are they in
          their order, are they swapped. [B, L] for "discriminator", above 0 where a token seems replaced.

        Raises:
          UserError: an id outside of the vocabulary, more tokens than positions, rows of different lengths, shapes that
            do not fit, inputs that the model does not take or lacks, a head that it does not have.
        """
        if head not in HEADS:
            raise UserError(f"there is no head '{head}': {nearest(head, filter(None, HEADS))}, or leave it out")
        name, method = HEADS[head]
        if not self._has_head(head):
            raise UserError(f"this model has no {name} head: load a checkpoint that holds one")
        given = self._checked(tokens, mask, token_types, decoder_tokens, decoder_mask)
        if isinstance(self.config, settings.EncoderDecoder) and decoder_tokens is None:
            raise UserError("this model is an encoder-decoder: give decoder_tokens too")
        model, params = self.model, self.params
        if head is None and isinstance(self.config, settings.Electra):
            model, params = electra.generator(model, params)
        return _logits(model, params, given, method)

    def hidden_states(self, tokens, mask=None, token_types=None, decoder_tokens=None, decoder_mask=None) -> jax.Array:
        """Float32 [layers + 1, B, L, D]: embeddings, then each block, the last after the final norm.

        Of an encoder-decoder the decoder's, [layers + 1, B, L', D], where decoder_tokens are given, else the encoder's.
        Of an ELMo forward and backward side by side, [layers + 1, B, L, 2 D], the words' vectors twice; its LSTMs begin
        from zeros. Arguments and errors as `logits`.
        """
        given = self._checked(tokens, mask, token_types, decoder_tokens, decoder_mask)
        if isinstance(self.config, settings.Elmo):
            return _elmo_layers(self.model, self.params, given)
        where = {"method": "features", "embedded": "embedded", "stack": "stack"}
        if isinstance(self.config, settings.EncoderDecoder):
            where["stack"] = "decoder"
            if decoder_tokens is None:
                where = {"method": "encode", "embedded": "encoder_embedded", "stack": "encoder"}
        return _hidden_states(self.model, self.params, given, **where)

    def _has_head(self, head: str | None) -> bool:
        if head is None:
            return not isinstance(getattr(self.config, "generator", self.config).head, settings.NoHead)
        if head == "discriminator":
            return isinstance(getattr(self.config, "discriminator", None), settings.Discriminator)
        if head == "backward":
            return isinstance(self.config.head, settings.Softmax)
        pooler = getattr(self.config, "pooler", None)
        return isinstance(pooler, settings.Pooler) and pooler.classes > 0

    def _checked(self, tokens, mask, token_types, decoder_tokens, decoder_mask) -> dict[str, np.ndarray]:
        """The module's inputs by their names, those that are given."""
        if isinstance(self.config, settings.Elmo):
            if any(x is not None for x in (token_types, decoder_tokens, decoder_mask)):
                raise UserError("an ELMo takes tokens and mask alone: leave token_types and decoder_tokens out")
            return self._spelt(tokens, mask)
        embedding, position = self.config.embedding, self.config.attention.position
        found = inputs.ids("tokens", tokens, self.config.vocab_size)
        found |= inputs.mask("mask", mask, "tokens", found["tokens"])
        if token_types is not None:
            if not embedding.token_types:
                raise UserError("this model has no token types: leave token_types out")
            found |= inputs.ids("token_types", token_types, embedding.token_types)
            inputs.same_shape("token_types", found["token_types"], "tokens", found["tokens"])
        if decoder_tokens is None and decoder_mask is not None:
            raise UserError("decoder_mask is given without decoder_tokens: give both")
        if decoder_tokens is not None:
            if not isinstance(self.config, settings.EncoderDecoder):
                raise UserError("this model is no encoder-decoder: leave decoder_tokens out")
            found |= inputs.ids("decoder_tokens", decoder_tokens, self.config.vocab_size)
            found |= inputs.mask("decoder_mask", decoder_mask, "decoder_tokens", found["decoder_tokens"])
            if len(found["decoder_tokens"]) != len(found["tokens"]):
                raise UserError("decoder_tokens and tokens have different batch sizes: give the same")
        longest = max(found[name].shape[1] for name in ("tokens", "decoder_tokens") if name in found)
        skips = isinstance(self.config, settings.Decoder) or position.skips_padding
        if skips and mask is not None:
            longest = int(found["mask"].sum(axis=1).max(initial=0))
        if self._marks is not None:
            real = found.get("mask", np.ones_like(found["tokens"]))
            places = infilling.places(found["tokens"], real, self._marks)
            longest = max(int(places[name].max(initial=0)) for name in ("positions", "block_positions"))
            found |= places
        if (most := self.config.num_positions) is not None and longest > most:
            raise UserError(f"{longest} tokens exceed the model's {most} positions: give fewer")
        return found

    @cached_property
    def _spelling(self) -> np.ndarray:
        """The characters of an ELMo's words, [V, C]."""
        if self._vocabulary_spec is None:
            raise self._no_vocabulary()
        path = self._vocabulary_spec.partition(":")[2]
        return words.characters(words.read(path), self.config.max_characters)

    def _spelt(self, tokens, mask) -> dict[str, np.ndarray]:
        """An ELMo's inputs, of words that are given by their ids or spelt."""
        tokens, length = inputs.integers("tokens", tokens), self.config.max_characters
        if tokens.ndim != 3:
            ids = inputs.ids("tokens", tokens, len(self._spelling))["tokens"]
            return {"characters": self._spelling[ids].astype(np.int32)} | inputs.mask("mask", mask, "tokens", ids)
        if tokens.shape[2] != length or not (tokens.min(initial=0) >= 0 and tokens.max(initial=0) <= words.PADDING):
            raise UserError(
                f"characters have shape {tokens.shape}: give [batch, length, {length}], 0 to {words.PADDING}"
            )
        return {"characters": tokens} | inputs.mask("mask", mask, "tokens", tokens[..., 0])

    def characters(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """What an ELMo reads of texts, words with white space between, each framed by `<S>` and `</S>`.

        Returns:
          Characters int32 [B, L, C], also of words that the vocabulary lacks, and a mask int32 [B, L].
        """
        if not isinstance(self.config, settings.Elmo):
            raise UserError("this model reads no characters: give the ids of tokens")
        return words.sentences(texts, self.config.max_characters)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 50,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_beams: int = 1,
        seed: int = 0,
    ) -> list[str] | list[list[int]]:
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

        Arguments and errors as `decoding.generate`; an encoder takes none but the prompts.
        """
        prompts = inputs.prompts(prompts)
        in_text = all(isinstance(prompt, str) for prompt in prompts)
        if isinstance(self.config, settings.Elmo):
            raise UserError("an ELMo reads text and writes none: use `hidden_states` or `logits`")
        if isinstance(self.config, settings.Encoder):
            if temperature or num_beams != 1 or (top_k, top_p) != (None, None):
                raise UserError(
                    "a masked model fills each blank with the most probable token: leave out temperature, top_k, "
                    "top_p and num_beams"
                )
            return [filled.text for filled in self.fill(prompts, top_k=1)] if in_text else self._fill_ids(prompts)
        write = self.writer(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            num_beams=num_beams,
            seed=seed,
        )
        if self._marks is not None:
            return (self._infill if in_text else self._infill_ids)(prompts, partial(write, marks=self._marks))
        if not in_text:
            return write(prompts)
        encoded = [self._encode(prompt) for prompt in prompts]
        written = write(encoded)
        to_text = _continuation if isinstance(self.config, settings.Decoder) else self._answer
        return [to_text(self.vocabulary, *pair) for pair in zip(encoded, written, strict=True)]

    def writer(self, **options: Any) -> Callable[[Sequence[Sequence[int]]], list[list[int]]]:
        """`decoding.generate` with this model and options: from rows of tokens to what follows or answers each."""
        return partial(
            decoding.generate,
            self.model,
            self.params,
            eos_ids=self._eos_ids,
            start_id=self.special_ids.get("decoder_start_token_id", self.special_ids.get("pad_token_id", 0)),
            vocab_size=self._known_vocabulary and self._known_vocabulary.vocab_size,
            sees_prompt=self.run is not None and self.run.objective.has_prefix,
            **options,
        )

    def fill(self, texts: str | Sequence[str], top_k: int = 5) -> list[blanks.Filled]:
        """Fills each `[MASK]` of each text with a masked model's most probable token, all of a text at once.

        Args:
          texts: each with one `[MASK]` or more; `<mask>` is the same.
          top_k: how many candidates to give for each.

        Raises:
          UserError: the model is no masked one, a text has no `[MASK]` or too many tokens.
        """
        mask_id = self.special_ids.get("mask_token_id")
        if not isinstance(self.config, settings.Encoder) or mask_id is None:
            raise UserError("this model is no masked one, or has no mask in its vocabulary: use `generate`")
        if top_k < 1:
            raise UserError(f"top_k is {top_k}: give at least 1")
        encoded = [self._encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        logits = self.logits(*decoding.padded(encoded, max(map(len, encoded), default=0)))
        return [
            blanks.fill_masks(self.vocabulary, tokens, logits_LV, mask_id, self._frame, top_k)
            for tokens, logits_LV in zip(encoded, logits, strict=True)
        ]

    def _fill_ids(self, prompts: list[list[int]]) -> list[list[int]]:
        """The prompts with a masked model's most probable token in place of each mask."""
        mask_id = self.special_ids.get("mask_token_id")
        _check_masks(prompts, [] if mask_id is None else [mask_id])
        tokens, mask = decoding.padded(prompts, max(map(len, prompts)))
        size = self._known_vocabulary and self._known_vocabulary.vocab_size
        best = np.asarray(self.logits(tokens, mask)[..., :size].argmax(axis=-1))
        filled = np.where(tokens == mask_id, best, tokens)
        return [row[: len(prompt)].tolist() for row, prompt in zip(filled, prompts, strict=True)]

    @property
    def _marks(self) -> infilling.Marks | None:
        if self.run is not None and not self.run.objective.fills_blanks:
            return None
        return infilling.marks(self.config, self.special_ids)

    def _infill(self, texts: list[str], write) -> list[str]:
        """The texts with their blanks filled by a decoder; `write` continues rows of tokens."""
        prompts = [infilling.encode(self.vocabulary, text, self.special_ids) for text in texts]
        filled = infilling.fill(prompts, self._marks, write)
        return [
            infilling.decode(self.vocabulary, *of_text, self._marks, self.special_ids)
            for of_text in zip(texts, prompts, filled, strict=True)
        ]

    def _infill_ids(self, prompts: list[list[int]], write) -> list[list[int]]:
        """The prompts with what a decoder fills their masks with."""
        _check_masks(prompts, self._marks.masks)
        filled = infilling.fill(prompts, self._marks, write)
        parts = (infilling.parts(*of_prompt, self._marks) for of_prompt in zip(prompts, filled, strict=True))
        return [[token for part in found for token in part] for found in parts]

    @property
    def _eos_ids(self) -> list[int]:
        if self._marks is not None:
            return [self._marks.eop]
        eos = self.special_ids.get("eos_token_id", getattr(self._known_vocabulary, "eos_id", None))
        return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    @property
    def _frame(self) -> list[int | None]:
        """What a masked model's text begins and ends with; RoBERTa's vocabulary has no tokens for that alone."""
        names = (("cls_token_id", "bos_token_id"), ("sep_token_id", "eos_token_id"))
        return [next((self.special_ids[name] for name in pair if name in self.special_ids), None) for pair in names]

    @property
    def _sentinels(self) -> range:
        size = self.vocabulary.vocab_size
        return range(size - 1, size - 1 - self.special_ids.get("sentinels", 0), -1)

    def _encode(self, text: str) -> list[int]:
        """A prompt's tokens as the model was trained to see them: blanks as their ids, special tokens around."""
        vocabulary, special = self.vocabulary, self.special_ids
        if isinstance(self.config, settings.Decoder):
            return [*self._begin, *vocabulary.encode(text)] or self._between_documents
        if isinstance(self.config, settings.EncoderDecoder):
            marks = blanks.sentinels_of(text, self._sentinels)
            if "mask_token_id" in special:
                marks |= {mask: special["mask_token_id"] for mask in blanks.MASKS if mask in text}
            framed = self.run is None or self.run.objective.frames
            bos = [special["bos_token_id"]] if framed and "bos_token_id" in special else []
            return bos + blanks.encode(vocabulary, text, marks) + self._eos_ids[:1]
        if not any(mask in text for mask in blanks.MASKS):
            raise UserError(f"there is no {blanks.MASKS[0]} in '{text}': write one where a token is missing")
        tokens = blanks.encode(vocabulary, text, dict.fromkeys(blanks.MASKS, special["mask_token_id"]))
        if self.run is not None and self.run.data.layout.kind == "blocks":
            return tokens
        begin, end = ([] if token is None else [token] for token in self._frame)
        return [*begin, *tokens, *end]

    @property
    def _begin(self) -> list[int]:
        """What a decoder read before every text."""
        special = self.special_ids
        bos = [special["bos_token_id"]] if special.get("begins_with_bos") and "bos_token_id" in special else []
        return list(special.get("begins_with", bos))

    @property
    def _between_documents(self) -> list[int]:
        """What stands before a decoder's texts where nothing begins them; elsewhere than here that may be called bos.

        Raises:
          UserError: nothing does.
        """
        bos = self.special_ids.get("bos_token_id") if self.run is None else None
        if found := self._eos_ids[:1] if bos is None else [bos]:
            return found
        raise UserError("nothing stood before this model's texts, so it starts from no empty prompt: give a first word")

    def _answer(self, vocabulary, prompt: Sequence[int], answer: Sequence[int]) -> str:
        if set(prompt) & set(self._sentinels):
            answer = blanks.fill_spans(prompt[:-1] if self._eos_ids else prompt, answer, self._sentinels)
        return vocabulary.decode([token for token in answer if token != self.special_ids.get("bos_token_id")])

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
        source = sources.Source(self._pretrained, self.run, self.workdir, self.step, self.vocabulary_id)
        sources.save(os.fspath(directory), source, format)


def _check_masks(prompts: list[list[int]], masks: Sequence[int]) -> None:
    """Each prompt must have a blank, one of these ids."""
    if not all(set(prompt) & set(masks) for prompt in prompts):
        known = f"the model's is {', '.join(map(str, masks))}" if masks else "the model has none"
        raise UserError(f"a prompt has no id of a mask: put one where a token is missing ({known})")


def _continuation(vocabulary, prompt: Sequence[int], new: Sequence[int]) -> str:
    # Decoded with the prompt, because SentencePiece drops the space before a first word. seqio cuts at an end token.
    context = [token for token in prompt if token != vocabulary.eos_id]
    return vocabulary.decode([*context, *new])[len(vocabulary.decode(context)) :]


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
    with sources.opened(path) as source:
        pretrained = source.pretrained
        return LanguageModel(
            pretrained.model,
            jax.tree.map(float32, pretrained.params),
            run=source.run,
            workdir=source.workdir,
            step=source.step,
            vocabulary_spec=pretrained.vocabulary,
            vocabulary_id=source.vocabulary_id,
            special_ids=pretrained.special_ids,
            family=pretrained.family,
        )
