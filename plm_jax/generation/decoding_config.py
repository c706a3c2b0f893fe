"""Settings of decoding: search or sampling, length, and constraints."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from plm_jax.common import ranges, trees
from plm_jax.common.errors import UserError, nearest


@dataclass(frozen=True)
class DecodingConfig:
    """Decoding settings. Settings that also exist in Hugging Face transformers have the same names as there.

    Attributes:
      max_new_tokens: maximum number of generated tokens, including the end token. None: 50 in `generate`, and the
        maximum length of the task's targets in `evaluate`.
      min_new_tokens: minimum number of generated tokens before the end token. Forced tokens and stop strings may end an
        answer earlier.
      temperature: divisor of the logits in sampling; 0 or None: no sampling. Without sampling and beams, the most
        probable token is chosen; among equally probable tokens, the token with the lowest id.
      top_k: number of most probable tokens to sample from; None: all tokens.
      top_p: probability mass to sample from (Holtzman et al. 2020); None: all tokens. After `top_k` is applied, tokens
        are sampled from the smallest set of most probable tokens whose total probability is at least `top_p`.
      num_beams: number of beams of a beam search, as in transformers; 1: no beam search.
      length_penalty: exponent α of the length penalty, which divides the log-probability of a finished hypothesis;
        above 0, it favors long hypotheses.
      length_penalty_form: formula of the length penalty. `power`: length ** α (transformers, fairseq). `gnmt`: ((5 +
        length) / 6) ** α (Wu et al. 2016, T5). The length is the number of tokens of a hypothesis, including the end
        token.
      early_stopping: condition on which beam search stops. True: there are `num_beams` finished hypotheses. False:
        `num_beams` finished hypotheses are better than the best unfinished hypothesis, whose score uses the length
        penalty of its current length. "never": no unfinished hypothesis can become one of the best `num_beams`
        hypotheses, whatever its final length.
      no_repeat_ngram_size: size of the n-grams that an answer never repeats; 0: no limit. A decoder does not repeat
        n-grams of the prompt either. Forced tokens are exempt from this rule.
      forced_bos_token_id: id that is forced as the first token of each answer.
      forced_eos_token_id: id that is forced as the last token of an answer that reaches `max_new_tokens` without an end
        token.
      forced_prefix: text or ids with which each answer begins, after `forced_bos_token_id`.
      stop_strings: strings at which an answer ends. An answer in text ends before the stop string. An answer in ids
        includes the token that completes the stop string.
      num_return_sequences: number of answers per prompt: the best beams, or independent samples.
    """

    max_new_tokens: ranges.Length | None = None
    min_new_tokens: ranges.LengthOrZero = 0
    temperature: ranges.Scale | None = None
    top_k: ranges.Length | None = None
    top_p: ranges.ShareAboveZero | None = None
    num_beams: Annotated[int, ranges.Range(1, 4096)] = 1
    length_penalty: Annotated[float, ranges.Range(-100, 100)] = 1.0
    length_penalty_form: Literal["power", "gnmt"] = "power"
    early_stopping: Literal[False, True, "never"] = False
    no_repeat_ngram_size: ranges.LengthOrZero = 0
    forced_bos_token_id: ranges.LengthOrZero | None = None
    forced_eos_token_id: ranges.LengthOrZero | None = None
    forced_prefix: str | tuple[ranges.LengthOrZero, ...] = ""
    stop_strings: tuple[str, ...] = ()
    num_return_sequences: Annotated[int, ranges.Range(1, 2**16)] = 1

    def __post_init__(self):
        if self.temperature and self.num_beams > 1:
            raise UserError("beam search does not sample: leave out temperature, or set num_beams to 1")
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise UserError(f"stop_strings is {self.stop_strings!r}: pass a list of texts, none of them empty")
        if self.num_return_sequences > self.num_beams and not self.temperature:
            raise UserError(
                f"num_return_sequences is {self.num_return_sequences}, num_beams {self.num_beams}: raise "
                "num_beams, or set temperature to sample"
            )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens is {self.min_new_tokens}, max_new_tokens {self.max_new_tokens}: lower min_new_tokens"
            )

    def changed(self, **options: Any) -> "DecodingConfig":
        """Returns the settings with some fields replaced.

        A field that is a tuple may be passed as a list. `stop_strings` may also be a single string.

        Raises:
          UserError: a field does not exist, a value has the wrong type or is out of range, or two values contradict
            each other.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in options:
            if name not in names:
                raise UserError(f"there is no option '{name}': {nearest(name, names)}")
        changes = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        if isinstance(stop_string := changes.get("stop_strings"), str):
            changes["stop_strings"] = (stop_string,)
        return trees.parse(DecodingConfig, {name: getattr(self, name) for name in names} | changes, "decoding")

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are sampled."""
        return bool(self.temperature)

    def penalty(self, length: Any) -> Any:
        """Returns the length penalty. The log-probability of a hypothesis is divided by this number.

        Args:
          length: number of tokens, or an array of numbers of tokens.
        """
        return (length if self.length_penalty_form == "power" else (5 + length) / 6) ** self.length_penalty


# Lengths include the token <s> at the beginning of each answer of BART, and its end token.
_BART = DecodingConfig(
    num_beams=4,
    length_penalty=2.0,
    early_stopping=True,
    no_repeat_ngram_size=3,
    forced_bos_token_id=0,
    forced_eos_token_id=2,
)
# Published decoding settings by name.
PUBLISHED = {
    # Lewis et al. 2020; facebookresearch/fairseq, examples/bart/README.summarization.md.
    "bart_cnn_dm": dataclasses.replace(_BART, min_new_tokens=55, max_new_tokens=141),
    "bart_xsum": dataclasses.replace(_BART, num_beams=6, min_new_tokens=10, max_new_tokens=61, length_penalty=1.0),
    # Raffel et al. 2020, for translation and summaries; Brown et al. 2020 §2.4 for GPT-3's free-form answers.
    "t5": DecodingConfig(num_beams=4, length_penalty=0.6, length_penalty_form="gnmt", early_stopping="never"),
}
