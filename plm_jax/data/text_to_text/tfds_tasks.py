"""Registration of tasks and mixtures on TFDS data with seqio, as texts. Importing this module downloads nothing.

plm_jax:TASK                        every task of the suite
plm_jax:glue, :super_glue, :all     mixtures, with T5's sizes of the tasks as rates
plm_jax:CORPUS                      corpora for pretraining that TFDS provides, with the feature `text`
plm_jax:MODEL                       mixtures of published models that need only these corpora, such as `plm_jax:t5`
"""

from plm_jax.data.sources import corpora, tasks
from plm_jax.data.sources.tensorflow_sources import Tfds
from plm_jax.data.tensorflow_side import seqio
from plm_jax.data.text_to_text import sizes, suite

_CORPORA = {name: corpus.source for name, corpus in corpora.CORPORA.items() if isinstance(corpus.source, Tfds)}
_MIXTURES = {"glue": sizes.GLUE, "super_glue": sizes.SUPER_GLUE, "all": sizes.ALL}
_MIXTURES |= {name: mix.rates for name, mix in corpora.MIXTURES.items() if mix.rates.keys() <= _CORPORA.keys()}

for _name in suite.TASKS:
    suite.register(_name)
for _name, _source in _CORPORA.items():
    tasks.register_tfds(f"plm_jax:{_name}", _source)
for _name, _rates in _MIXTURES.items():
    seqio.MixtureRegistry.add(f"plm_jax:{_name}", [(f"plm_jax:{task}", float(rate)) for task, rate in _rates.items()])
