"""An optimizer with a partition: Muon (Jordan et al. 2024) for the matrices of each layer, Adam for the rest."""

from dataclasses import dataclass, replace

import jax
import optax
import optax.contrib

from plm_jax import config
from plm_jax.configs import demo


def labels(params):
    def label(path, leaf):
        return "muon" if path[-1].key == "kernel" and leaf.ndim == 3 else "adam"

    return jax.tree.map_with_path(label, params)


def dimension_numbers(params):
    of_layers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return jax.tree.map(lambda label: of_layers if label == "muon" else None, labels(params))


@dataclass(frozen=True)
class OptaxMuon(config.OptimizerConfig):
    """Muon for the matrices of each layer, Adam for the rest."""

    kind = "optax_muon"

    def transformations(self):
        muon = optax.contrib.scale_by_muon(weight_dimension_numbers=dimension_numbers)
        return (optax.partition({"muon": muon, "adam": optax.scale_by_adam()}, labels),)


def get_config():
    """Returns the demo's GPT-2 with this optimizer."""
    return config.to_config_dict(replace(demo.gpt2(), optimizer=OptaxMuon()))
