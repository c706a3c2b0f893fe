"""Importing this registers with seqio, as texts, what is trained on over TFDS; nothing is downloaded.

Tasks `plm_jax:TASK`, every one of the suite; mixtures `plm_jax:glue`, `plm_jax:super_glue` and `plm_jax:all`, by the
sizes of their tasks as T5 has them; tasks `plm_jax:CORPUS`, the corpora to pretrain on that TFDS has, with the feature
`text`; mixtures `plm_jax:MODEL` of these alone, such as `plm_jax:t5`.
"""

from plm_jax.data.sources import corpora, tasks
from plm_jax.data.sources.tensorflow_sources import Tfds
from plm_jax.data.tensorflow_side import seqio
from plm_jax.data.text_to_text import sizes, suite

_CORPORA = {name: corpus.source for name, corpus in corpora.CORPORA.items() if isinstance(corpus.source, Tfds)}
_MIXTURES = {"glue": sizes.GLUE, "super_glue": sizes.SUPER_GLUE, "all": sizes.ALL}
_MIXTURES |= {name: made.rates for name, made in corpora.MIXTURES.items() if made.rates.keys() <= _CORPORA.keys()}

for _name in suite.TASKS:
    suite.register(_name)
for _name, _source in _CORPORA.items():
    tasks.register_tfds(f"plm_jax:{_name}", _source)
for _name, _rates in _MIXTURES.items():
    seqio.MixtureRegistry.add(f"plm_jax:{_name}", [(f"plm_jax:{task}", float(rate)) for task, rate in _rates.items()])
