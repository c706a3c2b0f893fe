"""One text, one vocabulary, one size: masked tokens in an encoder, blanks in a GLM, next tokens in a decoder.

    python -m plm_jax sweep --sweep=ablations/objectives_one_set --workdir=runs/one-set
    python -m plm_jax sweep --sweep=ablations/objectives_one_set:demo --workdir=runs/one-set-demo --seeds=0,1,2

Their losses measure different things, so the models are compared on the tasks that they are tuned on, as in Du et al.
2022, table 6, whose figures are not listed here.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs import bert, demo, glm, gpt2
from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size, unpublished

base = by_size(paper="../glm.py:base", demo="../demo.py:glm")
_MODELS = {"paper": glm.model(*glm.SIZES["base"]), "demo": demo.glm().model}
NAMES = ("glm", "masked_lm", "causal_lm")


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    model = config.choose(_MODELS, size)
    rows = 512 if size == "paper" else 64
    dimensions = (model.stack.layers, model.embedding.width, model.attention.heads, model.embedding.vocab_size, rows)
    like = {"initializer": dataclasses.replace(bert.model(*dimensions).initializer, std=model.initializer.std)}
    encoder = bert.model(*dimensions, dropout=model.dropout.residual)
    encoder = dataclasses.replace(encoder, pooler=models.NoHead(), **like)
    decoder = gpt2.model(*dimensions, dropout=model.dropout.residual)
    scale = {"train.steps": 600} if size == "demo" else {}
    changes = {
        "glm": {},
        "masked_lm": {"model": encoder, "objective": objectives.MaskedLM(), "data.length": rows},
        "causal_lm": {"model": decoder, "objective": objectives.Causal(), "data.length": rows},
    }
    for name in NAMES:
        yield name, scale | changes[name]
        is_encoder = name == "masked_lm"
        tasks = downstream.ENCODER_TASKS if is_encoder else ("mnli", "sst2")
        yield from downstream.tuned(name, size, tasks, feature="mean" if is_encoder else "last")


published = unpublished(NAMES, "Du et al. 2022 (arXiv:2103.10360), table 6: not at hand")
compared = downstream.compared_encoders
