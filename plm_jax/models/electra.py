"""The ELECTRA architecture: a discriminator and a generator that share embedding tables (Clark et al. 2020).

With gradient-disentangled sharing (DeBERTaV3, He et al. 2023, arXiv:2111.09543 §3.3), each table of the discriminator
is the generator's table, without a gradient, plus a trained difference.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.encoder import Encoder, EncoderConfig
from plm_jax.models.heads import Discriminator, MaskDecoderHead, NoHead, VocabularyHead
from plm_jax.models.partitioning import partitioned
from plm_jax.models.tables import GatheredTable


@dataclass(frozen=True)
class GeneratorConfig:
    """Sizes of ELECTRA's generator, a masked language model.

    Except for these sizes and the heads, the generator has the settings of the discriminator.

    Attributes:
      width: width of hidden states. If the width of the embedding tables differs, a dense layer projects to this width,
        and the transform of the head projects back.
      heads: number of query heads, and of key and value heads.
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
    head: VocabularyHead | MaskDecoderHead = VocabularyHead(transform="gelu_exact", bias=True)


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(EncoderConfig):
    """A discriminator and a generator that share embedding tables (Clark et al. 2020 §3.2).

    Attributes:
      generator: sizes of the generator.
      sharing: kind of embedding sharing. `all`: both models use the same tables and the same embedding norm.
        `disentangled`: the discriminator adds trained differences to the tables of the generator, and each model has
        its own embedding norm (DeBERTaV3). The differences start at 0. The loss of the discriminator does not change
        the generator's tables.
    """

    kind: ClassVar[str] = "electra"
    architecture: ClassVar[str] = "electra"
    stack_paths: ClassVar[tuple[str, ...]] = ("stack", "generator/stack")
    head: NoHead = NoHead()
    pooler: NoHead = NoHead()
    discriminator: Discriminator = Discriminator()
    span_boundary: NoHead = NoHead()
    generator: GeneratorConfig
    sharing: Literal["all", "disentangled"] = "all"

    def __post_init__(self):
        super().__post_init__()
        _ = self.generator_model  # Its constructor checks the settings.

    @property
    @override
    def num_positions(self):
        """Maximum number of positions in a row that both models support; None: no maximum."""
        limits = super().num_positions, self.generator_model.num_positions
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def shared_tables(self) -> set[str]:
        """Names of the embedding tables that both models share. Tables that the models lack are included."""
        return {"token_embedding", "token_type_embedding", "task_type_embedding", *self.position_tables}

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

    @property
    @override
    def has_stages(self):
        return self.discriminator_model.has_stages and self.generator_model.has_stages

    @override
    def module(self, dtype):
        return Electra(self, dtype)

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        return sum(model.macs(length, targets) for model in (self.generator_model, self.discriminator_model))

    def with_discriminator_tables(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns parameters with the discriminator's embedding tables in place of the shared tables.

        If `sharing` is "all", the parameters are returned unchanged.

        Args:
          params: parameters of the discriminator, with or without the generator.
        """
        params = dict(params)
        for name in self.shared_tables & params.keys() if self.sharing == "disentangled" else ():
            params[name] = params[name][...] + params.pop(name + DIFFERENCE)[...]
        return params


# Ending of the names of the discriminator's differences from the shared tables.
DIFFERENCE = "_difference"


class Electra(Encoder):
    """The discriminator of an `ElectraConfig`, as an `Encoder`. The function `generator` returns the generator."""

    model: ElectraConfig

    def setup(self):
        """Creates the parameters of the discriminator and, in `generator`, those of the generator that are not shared.

        With disentangled sharing, the shared tables belong to the generator. The trained differences of the
        discriminator have the names of the tables with the suffix `_difference`.
        """
        super().setup()
        if self.is_initializing():
            self.param("generator", _init_generator, self.model)
        if self.model.sharing == "disentangled":
            for name in sorted(self.model.shared_tables & self.tables.keys()):
                if hasattr(self, name):
                    setattr(self, name, self._add_difference(name, getattr(self, name)))
            tables = self.position_tables[""]
            self.position_tables = {"": {name: self._add_difference(name, table) for name, table in tables.items()}}

    @property
    @override
    def tables(self):
        tables = super().tables
        return tables | {name + DIFFERENCE: axis for name, axis in tables.items() if name != "head"}

    def _add_difference(self, name, shared):
        """Returns a shared table, without a gradient, plus the discriminator's trained difference."""
        name += DIFFERENCE
        difference = self.get_variable("params", name)
        if isinstance(difference, GatheredTable):
            matrix = jax.lax.stop_gradient(shared.matrix) + difference.matrix
            return dataclasses.replace(difference, matrix=matrix)
        init = partitioned(nn.initializers.zeros, (self.tables[name], "embed"))
        return jax.lax.stop_gradient(shared) + self.param(name, init, jnp.shape(shared))


def generator(module: Electra, params) -> tuple[Encoder, dict]:
    """Returns a pair: the generator as an `Encoder`, and its parameters. `params` are the parameters of both models."""
    shared = {name: params[name] for name in _shared_names(module.model) if name in params}
    return Encoder(module.model.generator_model, module.dtype), {**shared, **params["generator"]}


def _shared_names(model: ElectraConfig) -> set[str]:
    """Returns the names of the parameters that both models share, as in google-research/electra, modeling.py."""
    return model.shared_tables | ({"embedding_norm"} if model.sharing == "all" else set())


def _init_generator(key, model: ElectraConfig):
    generator = model.generator_model
    params = Encoder(generator, parent=None).init(key, **generator.init_inputs())["params"]
    return {name: leaf for name, leaf in params.items() if name not in _shared_names(model)}
