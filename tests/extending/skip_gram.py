"""A model of one's own that is no transformer: vectors of words by what stands near them (Mikolov et al. 2013)."""

from dataclasses import dataclass, replace

import flax.linen as nn
import numpy as np

from plm_jax import config, objectives
from plm_jax.configs import demo
from plm_jax.models.protocol import ModelConfig, VocabularyModule


@dataclass(frozen=True)
class SkipGram(ModelConfig):
    """Two tables [vocab_size, width]: of words, and of words as neighbours."""

    kind = "skip_gram"
    vocab_size: int
    width: int = 64

    def module(self, dtype):
        return SkipGramModule(self, dtype)

    def macs(self, length, targets, decoder_length=0, samples=0):
        return targets * self.width * self.vocab_size


class SkipGramModule(VocabularyModule):
    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("vocab", "embed"))
        shape = self.model.vocab_size, self.model.width
        self.words, self.neighbours = (self.param(name, init, shape) for name in ("words", "neighbours"))

    def features(self, tokens, deterministic=True):
        return self.words.astype(self.dtype)[tokens]

    def unembedding(self):
        return self.neighbours, None


@dataclass(frozen=True)
class Neighbours(objectives.Objective):
    """Predict from each token one of those up to `window` places away."""

    kind = "neighbours"
    architectures = ("skip_gram",)
    targets = "a neighbour of each token"
    window: int = 4

    def apply(self, example, special, rng):
        tokens, place = np.asarray(example["tokens"], np.int32), np.arange(len(example["tokens"]))
        other = place + rng.integers(1, self.window + 1, len(tokens)) * rng.choice([-1, 1], len(tokens))
        weights = (other >= 0) & (other < len(tokens)) & (example.get("mask", place >= 0) != 0)
        return {"tokens": tokens, "targets": tokens[other * weights], "target_weights": weights.astype(np.float32)}


def get_config():
    return config.to_config_dict(replace(demo.gpt2(), model=SkipGram(demo.VOCAB_SIZE), objective=Neighbours()))
