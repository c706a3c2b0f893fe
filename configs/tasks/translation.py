"""Spanish to English by an English BART with a new encoder for Spanish, in two stages (Lewis et al. 2020 §3.4).

    python -m plm_jax finetune --config=configs/tasks/translation.py:1 --checkpoint=BART --workdir=runs/translation-1
    python -m plm_jax finetune --config=configs/tasks/translation.py:2 --checkpoint=runs/translation-1 --workdir=runs/2

The output of the new encoder replaces the token embeddings that BART's encoder reads. The first stage trains the new
encoder, the positions of BART's encoder, and the input projections of the self-attention in its first layer; the second
trains all parameters for a few steps. Both read the 2,000 pairs from Tatoeba that come with the package, with a tenth
held out; the paper uses WMT with back-translation. Its learning rates are not published; these are for BARTs of the
demo's size.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives


class Stage(NamedTuple):
    """Trained parameters, learning rate and duration of a stage."""

    trainable: tuple[str, ...]
    learning_rate: float
    epochs: float
    source_encoder: models.SourceEncoderConfig | None = None


STAGES = {
    "1": Stage(
        trainable=(
            "source_encoder/.*",
            "encoder_position_embedding",
            r"encoder/blocks/0/attention/(query|key|value)/(kernel|bias)",
        ),
        learning_rate=1e-3,
        epochs=20,
        source_encoder=models.SourceEncoderConfig(layers=2),
    ),
    "2": Stage(trainable=config.TrainConfig.trainable, learning_rate=3e-4, epochs=5),
}


def get_config(stage: str = "1"):
    """Returns the run of one of STAGES."""
    of = config.choose(STAGES, stage)
    pairs = config.TableInputsTargets(
        path="package:data/corpora/tatoeba_en_es.jsonl.gz",
        inputs="{es}",
        targets="{en}",
        prompt=config.PromptConfig("Spanish: {es}\nEnglish:"),
    )
    run = config.Run(
        model=models.FromCheckpointConfig(dropout=0.1, source_encoder=of.source_encoder),
        objective=objectives.Denoising(),
        vocabulary=config.VocabularyConfig(),
        data=config.DataConfig(
            cache_dir="../../.cache/tasks/translation",
            length=48,
            sources={"tatoeba": pairs},
            inputs_targets=config.InputsTargetsConfig(target_length=48),
            validation_fraction=0.1,
        ),
        optimizer=config.AdamWConfig(b2=0.98),
        schedule=config.LinearSchedule(learning_rate=of.learning_rate, warmup_fraction=0.1),
        train=config.TrainConfig(epochs=of.epochs, batch_size=32, trainable=of.trainable, label_smoothing=0.1),
        evaluation=config.EvaluationConfig(every=100, batch_size=64),
    )
    return config.to_config_dict(run)
