"""Published recipes for fine-tuning, and runs that use them. The configs of this folder import this module."""

from typing import Any, NamedTuple

from plm_jax import config, models, objectives


class Recipe(NamedTuple):
    """A recipe; all share a linear warm-up and decay of the learning rate, and dropout of 0.1.

    Attributes:
      warmup_fraction: share of the steps in the warm-up.
      clip_norm: norm to which gradients are clipped; 0 does not clip.
      lm_coefficient: weight of a decoder's language-model loss.
    """

    learning_rate: float
    batch_size: int = 32
    epochs: float = 3
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01
    b2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    layer_decay: float = 1.0
    lm_coefficient: float = 0.0

    @property
    def objective(self) -> dict[str, Any]:
        """Fields of the objective that depend on the recipe."""
        return {"rows": "decoder", "lm_coefficient": self.lm_coefficient} if self.lm_coefficient else {}


RECIPES = {
    # Devlin et al. 2019, appendix A.3: the best of 5e-5, 3e-5 and 2e-5, of batches of 16 and 32, of 2 to 4 epochs. Its
    # Adam left its bias uncorrected, which made runs on few rows collapse (Mosbach et al. 2021); ours corrects it.
    "bert": Recipe(learning_rate=3e-5, epsilon=1e-6),
    # facebookresearch/fairseq, examples/roberta/README.glue.md, the large one.
    "roberta": Recipe(1e-5, epochs=10, warmup_fraction=0.06, weight_decay=0.1, b2=0.98, epsilon=1e-6, clip_norm=0.0),
    # google-research/electra, configure_finetuning.py, small and base; its Adam left its bias uncorrected, too.
    "electra": Recipe(1e-4, epsilon=1e-6, layer_decay=0.8),
    # openai/finetune-transformer-lm, train.py.
    "gpt1": Recipe(6.25e-5, warmup_fraction=0.002, lm_coefficient=0.5),
    # facebookresearch/fairseq, examples/bart/README.glue.md, which counts updates and not epochs: 3 are ours.
    "bart": Recipe(1e-5, warmup_fraction=0.06, b2=0.98, clip_norm=0.0),
}


def run(
    recipe: str, objective: objectives.LabeledObjective, sources: dict[str, config.Source], length: int
) -> config.Run:
    """Returns the run that fine-tunes the model of a checkpoint on labeled sources, in rows of `length`."""
    of = config.choose(RECIPES, recipe)
    return config.Run(
        model=models.FromCheckpointConfig(dropout=0.1),
        objective=objective,
        vocabulary=config.VocabularyConfig(),
        data=config.DataConfig(
            cache_dir=f"../../.cache/tasks/{next(iter(sources))}",
            length=length,
            layout=config.LabeledLayout(),
            sources=sources,
            validation_fraction=0.1,
        ),
        optimizer=config.AdamWConfig(
            b2=of.b2,
            epsilon=of.epsilon,
            weight_decay=of.weight_decay,
            clip_norm=of.clip_norm,
            layer_decay=of.layer_decay,
        ),
        schedule=config.LinearSchedule(learning_rate=of.learning_rate, warmup_fraction=of.warmup_fraction),
        train=config.TrainConfig(epochs=of.epochs, batch_size=of.batch_size),
        evaluation=config.EvaluationConfig(every=100, batch_size=64),
    )
