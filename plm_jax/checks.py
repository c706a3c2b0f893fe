"""What a run's parts ask of each other, and no single field of its config can say."""

from typing import Any

from plm_jax import objectives
from plm_jax.errors import UserError
from plm_jax.models import settings


def streams(run: Any, stages: Any) -> None:
    """What streams ask for, and what asks for streams, of a `config.Run` with these stages.

    Raises:
      UserError: another objective reads them; several sources; no ids to frame documents with; a softmax over too many
        words, or one that takes other settings; a model without a head.
    """
    objective, data, vocabulary, train = run.objective, run.data, run.vocabulary, run.train
    reads_both_ways = isinstance(objective, objectives.BidirectionalLM)
    if reads_both_ways != (data.layout.kind == "streams"):
        raise UserError(
            f"objective '{objective.kind}' does not read config.data.layout '{data.layout.kind}': bidirectional_lm "
            "reads streams, all others read the other layouts"
        )
    if not reads_both_ways:
        return
    for stage in stages:
        rates = stage.mixture or dict.fromkeys(data.sources, 1.0)
        if sum(rate > 0 for rate in rates.values()) != 1:
            raise UserError("streams read one source: name one in config.data.sources, of several files if need be")
    if None in (vocabulary.bos, vocabulary.eos):
        raise UserError("streams frame documents: set config.vocabulary.bos and config.vocabulary.eos")
    if objective.negative_samples >= run.model.embedding.vocab_size:
        raise UserError(
            f"config.objective.negative_samples is {objective.negative_samples}, the model has "
            f"{run.model.embedding.vocab_size} words: give fewer, or 0 for the softmax over all"
        )
    if objective.negative_samples and (train.z_loss or train.label_smoothing):
        raise UserError("a sampled softmax takes no z_loss and no label_smoothing: set them or negative_samples to 0")
    if isinstance(run.model.head, settings.NoHead):
        raise UserError("bidirectional_lm trains a model with a head: set config.model.head.kind to softmax")


def examples(run: Any, stages: Any) -> None:
    """What sources with inputs and targets ask for, of a `config.Run` with these stages.

    Raises:
      UserError: an objective whose model answers nothing; a length of the targets that does not fit the rows; packed
        rows for a model that tells places in a row, or whose inputs see all of themselves.
    """
    objective, given = run.objective, run.data.examples
    names = [name for name, source in run.data.sources.items() if source.kind.endswith("_examples")]
    if not names:
        return
    if not isinstance(objective, objectives.ReadsExamples):
        raise UserError(
            f"source '{names[0]}' has inputs and targets, beside which objective '{objective.kind}' makes no rows: "
            "choose one for an encoder-decoder, causal or decoder_prefix_lm"
        )
    is_decoder, target_length = isinstance(run.model, settings.Decoder), given.target_length
    if is_decoder and target_length is None:
        raise UserError("a decoder's row is shared by inputs and targets: set config.data.examples.target_length")
    for stage in stages if target_length is not None else ():
        least, most = 2, stage.length if is_decoder else target_length
        if not is_decoder and len(names) < len(run.data.sources):
            least = objective.target_length(stage.length)
        if not least <= target_length <= most:
            limit = f"{least} to {most}" if is_decoder else f"at least {least}"
            raise UserError(
                f"config.data.examples.target_length is {target_length}, with rows of {stage.length}: give {limit}"
            )
    if not given.packed:
        return
    if isinstance(objective, objectives.DecoderPrefixLM):
        raise UserError("a row has one prefix: set config.data.examples.packed to False")
    position = run.model.attention.position
    if not is_decoder and not isinstance(position, settings.RelativeBias | settings.NoPositions):
        raise UserError(
            f"packed examples share an encoder's places, which '{position.kind}' positions tell: set "
            "config.data.examples.packed to False"
        )
