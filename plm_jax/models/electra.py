"""The ELECTRA architecture: a discriminator and a generator that share embedding tables (Clark et al. 2020)."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.encoder import Encoder, EncoderConfig
from plm_jax.models.heads import Discriminator, NoHead, VocabularyHead


@dataclass(frozen=True)
class GeneratorConfig:
    """Sizes of ELECTRA's generator, a masked language model. All other settings are the same as in the discriminator.

    Attributes:
      width: width of hidden states; if the embedding tables have another width, a dense layer projects to this width,
        and the transform of the head projects back.
      heads: number of attention heads.
      head_dim: dimension of each head.
      feed_forward: width of feed-forward layers.
      layers: number of layers.
      head: masked LM head.
    """

    width: ranges.Width
    heads: ranges.Width
    head_dim: ranges.Width
    feed_forward: ranges.Width
    layers: ranges.Layers
    head: VocabularyHead = VocabularyHead(transform="gelu_exact", bias=True)


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(EncoderConfig):
    """A discriminator and a generator, which share all embedding tables (Clark et al. 2020 §3.2).

    Attributes:
      generator: sizes of the generator.
    """

    kind: ClassVar[str] = "electra"
    architecture: ClassVar[str] = "electra"
    stack_paths: ClassVar[tuple[str, ...]] = ("stack", "generator/stack")
    head: NoHead = NoHead()
    pooler: NoHead = NoHead()
    discriminator: Discriminator = Discriminator()
    span_boundary: NoHead = NoHead()
    generator: GeneratorConfig

    def __post_init__(self):
        super().__post_init__()
        _ = self.generator_model  # Its constructor checks the settings.

    @functools.cached_property
    def discriminator_model(self) -> EncoderConfig:
        """Settings of the discriminator alone."""
        return EncoderConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(EncoderConfig)})

    @functools.cached_property
    def generator_model(self) -> EncoderConfig:
        """Settings of the generator alone."""
        sizes, columns = self.generator, self.embedding.columns
        return dataclasses.replace(
            self.discriminator_model,
            embedding=dataclasses.replace(
                self.embedding, width=sizes.width, embedding_size=None if columns == sizes.width else columns
            ),
            attention=dataclasses.replace(self.attention, heads=sizes.heads, head_dim=sizes.head_dim, kv_heads=None),
            feed_forward=dataclasses.replace(self.feed_forward, width=sizes.feed_forward),
            stack=dataclasses.replace(self.stack, layers=sizes.layers),
            head=sizes.head,
            discriminator=NoHead(),
            heads=(),
        )

    @property
    @override
    def named_heads(self):
        """Heads by name: the vocabulary head of the generator and the heads of the discriminator."""
        return {"vocabulary": self.generator.head} | super().named_heads

    @override
    def with_task(self, head):
        """Returns the settings of the discriminator alone with a task's head."""
        return self.discriminator_model.with_task(head)

    @property
    @override
    def stacks(self):
        """Stacks of the discriminator and the generator."""
        return self.stack, self.generator_model.stack

    @override
    def module(self, dtype):
        return Electra(self, dtype)

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        return sum(model.macs(length, targets) for model in (self.generator_model, self.discriminator_model))


class Electra(Encoder):
    """The discriminator of `ElectraConfig`, as an `Encoder`; the function `generator` returns the generator."""

    model: ElectraConfig

    def setup(self):
        """Creates the parameters of the discriminator and, in `generator`, the generator's that are not shared."""
        super().setup()
        if self.is_initializing():
            self.param("generator", _init_generator, self.model.generator_model)


def generator(module: Electra, params) -> tuple[Encoder, dict]:
    """Returns the generator as an `Encoder`, and its parameters; `params` are those of generator and discriminator."""
    shared = {name: params[name] for name in _shared(module.model) if name in params}
    return Encoder(module.model.generator_model, module.dtype), {**shared, **params["generator"]}


def _shared(model: EncoderConfig) -> set[str]:
    """Returns the names of the shared parameters, as in google-research/electra, modeling.py."""
    return {"token_embedding", "token_type_embedding", "task_type_embedding", "embedding_norm", *model.position_tables}


def _init_generator(key, model: EncoderConfig):
    params = Encoder(model, parent=None).init(key, **model.init_inputs())["params"]
    return {name: leaf for name, leaf in params.items() if name not in _shared(model)}
