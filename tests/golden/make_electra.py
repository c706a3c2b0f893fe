"""Writes the golden files of ELECTRA's two models with transformers: `python -m tests.golden.make_electra`.

Each folder is as those of `make_bert_t5.py`.
"""

import transformers

from tests.golden.make_bert_t5 import FOLDER, write
from tests.support import reference


def main():
    """Writes both folders."""
    config = transformers.ElectraConfig(**reference.SIZES["electra"], hidden_act="gelu_new")
    write(FOLDER / "electra", reference.randomized(transformers.ElectraForPreTraining, config))
    write(FOLDER / "electra_generator", reference.randomized(transformers.ElectraForMaskedLM, config))


if __name__ == "__main__":
    main()
