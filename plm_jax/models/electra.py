"""The ELECTRA architecture: a discriminator and a generator over the same tables of embeddings (Clark et al. 2020)."""

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
    """The sizes of the masked language model that replaces tokens for an ELECTRA; all else is as in the discriminator.

    Attributes:
      width: of its stack; where the tables of embeddings have another, a dense layer leads to it and the head's
        transform back.
    """

    width: ranges.Width
    heads: ranges.Width
    head_dim: ranges.Width
    feed_forward: ranges.Width
    layers: ranges.Layers
    head: VocabularyHead = VocabularyHead(transform="gelu_exact", bias=True)


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(EncoderConfig):
    """A discriminator and its generator, which share all tables of embeddings (Clark et al. 2020 §3.2)."""

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
        _ = self.generator_model  # It has checks of its own.

    @functools.cached_property
    def discriminator_model(self) -> EncoderConfig:
        """The discriminator by itself."""
        return EncoderConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(EncoderConfig)})

    @functools.cached_property
    def generator_model(self) -> EncoderConfig:
        """The generator by itself."""
        own, columns = self.generator, self.embedding.columns
        return dataclasses.replace(
            self.discriminator_model,
            embedding=dataclasses.replace(
                self.embedding, width=own.width, embedding_size=None if columns == own.width else columns
            ),
            attention=dataclasses.replace(self.attention, heads=own.heads, head_dim=own.head_dim, kv_heads=None),
            feed_forward=dataclasses.replace(self.feed_forward, width=own.feed_forward),
            stack=dataclasses.replace(self.stack, layers=own.layers),
            head=own.head,
            discriminator=NoHead(),
            heads=(),
        )

    @property
    @override
    def named_heads(self):
        """The generator's for the vocabulary, the others the discriminator's."""
        return {"vocabulary": self.generator.head} | super().named_heads

    @override
    def with_task(self, head):
        """The discriminator by itself with it."""
        return self.discriminator_model.with_task(head)

    @property
    @override
    def stacks(self):
        """The discriminator's and the generator's."""
        return self.stack, self.generator_model.stack

    @override
    def module(self, dtype):
        """An `Electra`."""
        return Electra(self, dtype)

    @override
    def products(self, length, targets, decoder_length=0, samples=0):
        """Of both."""
        return sum(one.products(length, targets) for one in (self.generator_model, self.discriminator_model))


class Electra(Encoder):
    """The discriminator of `ElectraConfig`, an encoder; `generator` gives the other one."""

    model: ElectraConfig

    def setup(self):
        """Parameters besides those of the discriminator: `generator`, a generator's without the tables."""
        super().setup()
        if self.is_initializing():
            self.param("generator", _init_generator, self.model.generator_model)


def generator(module: Electra, params) -> tuple[Encoder, dict]:
    """The generator as an encoder by itself, and of `params`, the pair's, all that are its."""
    shared = {name: params[name] for name in _shared(module.model) if name in params}
    return Encoder(module.model.generator_model, module.dtype), {**shared, **params["generator"]}


def _shared(model: EncoderConfig) -> set[str]:
    """What the generator has from the discriminator, as in google-research/electra, modeling.py."""
    return {"token_embedding", "token_type_embedding", "embedding_norm", *model.position_tables}


def _init_generator(key, model: EncoderConfig):
    params = Encoder(model, parent=None).init(key, **model.init_inputs())["params"]
    return {name: leaf for name, leaf in params.items() if name not in _shared(model)}
