"""The ELECTRA architecture: a discriminator and a generator over the same tables of embeddings (Clark et al. 2020)."""

import jax.numpy as jnp

from plm_jax.models import settings
from plm_jax.models.encoder import Encoder

# What the generator has from the discriminator, as in google-research/electra, modeling.py.
SHARED = ("token_embedding", "position_embedding", "token_type_embedding", "embedding_norm")


class Electra(Encoder):
    """The discriminator of `settings.Electra`, an encoder; `generator` gives the other one."""

    def setup(self):
        """Parameters besides those of the discriminator: `generator`, a generator's without the tables."""
        super().setup()
        if self.is_initializing():
            self.param("generator", _init_generator, self.model.generator_model)


def generator(module: Electra, params) -> tuple[Encoder, dict]:
    """The generator as an encoder by itself, and of `params`, the pair's, all that are its."""
    shared = {name: params[name] for name in SHARED if name in params}
    return Encoder(module.model.generator_model, module.dtype), {**shared, **params["generator"]}


def _init_generator(key, model: settings.Encoder):
    params = Encoder(model, parent=None).init(key, jnp.zeros((1, 1), jnp.int32))["params"]
    return {name: leaf for name, leaf in params.items() if name not in SHARED}
