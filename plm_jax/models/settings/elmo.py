"""Settings of an ELMo: words by their characters, LSTMs in both directions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.lazy import lazy
from plm_jax.models.heads import Head, NoHead, Softmax
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.settings.parts import DropoutConfig, InitializerConfig

jnp = lazy("jax.numpy")


@dataclass(frozen=True)
class CharacterCNNConfig:
    """Embeddings of words made from their characters by a CNN (Kim et al. 2016), as in allenai/bilm-tf.

    Attributes:
      vocab_size: number of words that the head tells apart; 0 if there is no head and the number is unknown.
      width: of a word's vector, and of what each LSTM gives.
      dim: of a character's vector.
      filters: (characters wide, how many), each applied wherever it fits; of each the largest value stays.
      max_characters: of a word, its begin and end among them; a longer one is cut.
      activation: after the largest value is taken.
      highway_layers: between the filters and the projection to `width` (Srivastava et al. 2015).
    """

    vocab_size: ranges.LengthOrZero
    width: ranges.Width = 512
    dim: ranges.Width = 16
    filters: tuple[tuple[ranges.Width, ranges.Width], ...] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    max_characters: ranges.Width = 50
    activation: Literal["relu", "tanh"] = "relu"
    highway_layers: ranges.Layers = 2

    def __post_init__(self):
        widest = max((width for width, _ in self.filters), default=0)
        if not self.filters or min(min(pair) for pair in self.filters) < 1 or widest > self.max_characters:
            raise UserError(
                f"embedding.filters are {self.filters}: give (characters, filters), both at least 1, at most "
                f"{self.max_characters} characters"
            )


@dataclass(frozen=True)
class LstmConfig:
    """Stacked LSTMs with a projection of their output (Sak et al. 2014), one stack for each direction.

    Attributes:
      cell: units of the memory.
      cell_clip, projection_clip: the largest absolute value of the memory and of what is given.
    """

    layers: ranges.Layers = 2
    cell: ranges.Width = 4096
    cell_clip: ranges.Positive = 3.0
    projection_clip: ranges.Positive = 3.0


@dataclass(frozen=True)
class LstmDropoutConfig:
    """Dropout rates: on the input of each LSTM, on the output of the last."""

    input: ranges.ShareBelowOne = 0.0
    output: ranges.ShareBelowOne = 0.0

    rates = DropoutConfig.rates
    all_at = DropoutConfig.all_at


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ModelConfig):
    """A bidirectional language model (Peters et al. 2018): LSTMs that read forward and others that read backward.

    Attributes:
      heads: as of `Transformer`; they read both directions side by side.
      scan_layers, remat: as in `Transformer`, of whose values `remat` has three.
    """

    kind: ClassVar[str] = "elmo"
    remat_levels = ("none", "dots", "full")
    any_order = False
    inputs = ("characters", "mask")
    embedding: CharacterCNNConfig
    lstm: LstmConfig = LstmConfig()
    # What heads of tasks are drawn from.
    initializer = InitializerConfig()
    head: Softmax | NoHead = Softmax()
    dropout: LstmDropoutConfig = LstmDropoutConfig()
    heads: tuple[tuple[str, Head], ...] = ()
    scan_layers: bool = True
    remat: Literal["none", "dots", "full"] = "none"

    def __post_init__(self):
        if isinstance(self.head, Softmax) and not self.embedding.vocab_size:
            raise UserError("embedding.vocab_size is 0: give the number of words that the head tells apart")

    @property
    def vocab_size(self) -> int:
        """Words that the head tells apart."""
        return self.embedding.vocab_size

    @property
    def max_characters(self) -> int:
        """Of a word, its begin and end among them."""
        return self.embedding.max_characters

    @property
    def named_heads(self) -> dict[str, Head]:
        """The softmax, after the words so far and before those to come, and the others."""
        own = () if isinstance(self.head, NoHead) else ("vocabulary", "backward")
        return dict.fromkeys(own, self.head) | dict(self.heads)

    @property
    def num_states(self) -> int:
        """The words' vectors and each layer."""
        return self.lstm.layers + 1

    @property
    def state_width(self) -> int:
        """Both directions'."""
        return 2 * self.embedding.width

    def module(self, dtype):
        """A `models.elmo.Elmo`."""
        from plm_jax.models.elmo import Elmo as Module

        return Module(self, dtype)

    def init_inputs(self):
        """One word's characters."""
        return {"characters": jnp.zeros((1, 1, self.max_characters), jnp.int32)}

    def new_carry(self, rows):
        """The state of the LSTMs before the first word."""
        from plm_jax.models import elmo

        return elmo.new_carry(self, rows)

    def products(self, length, targets, decoder_length=0, samples=0):
        """Each direction reads every word and predicts one at each."""
        embedding, lstm = self.embedding, self.lstm
        places = ((width, number, embedding.max_characters - width + 1) for width, number in embedding.filters)
        filters = sum(number for _, number in embedding.filters)
        products = sum(width * embedding.dim * number * fits for width, number, fits in places)
        products += 2 * embedding.highway_layers * filters**2 + filters * embedding.width
        products += lstm.layers * (2 * embedding.width * 4 * lstm.cell + lstm.cell * embedding.width)
        products += embedding.width * (samples + 1 if samples else embedding.vocab_size)
        return 2 * length * products + sum(head.products(self, length, targets) for _, head in self.heads)
