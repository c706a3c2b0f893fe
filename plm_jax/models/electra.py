"""The ELECTRA architecture: a discriminator and a generator over the same tables of embeddings (Clark et al. 2020)."""

from plm_jax.models import settings
from plm_jax.models.encoder import Encoder


class Electra(Encoder):
    """The discriminator of `settings.ElectraConfig`, an encoder; `generator` gives the other one."""

    def setup(self):
        """Parameters besides those of the discriminator: `generator`, a generator's without the tables."""
        super().setup()
        if self.is_initializing():
            self.param("generator", _init_generator, self.model.generator_model)


def generator(module: Electra, params) -> tuple[Encoder, dict]:
    """The generator as an encoder by itself, and of `params`, the pair's, all that are its."""
    shared = {name: params[name] for name in _shared(module.model) if name in params}
    return Encoder(module.model.generator_model, module.dtype), {**shared, **params["generator"]}


def _shared(model: settings.EncoderConfig) -> set[str]:
    """What the generator has from the discriminator, as in google-research/electra, modeling.py."""
    tables = model.attention.position.embedding_tables(model)
    return {"token_embedding", "token_type_embedding", "embedding_norm", *tables}


def _init_generator(key, model: settings.EncoderConfig):
    params = Encoder(model, parent=None).init(key, **model.init_inputs())["params"]
    return {name: leaf for name, leaf in params.items() if name not in _shared(model)}
