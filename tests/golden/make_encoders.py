"""Writes the golden files of BERT's kin with transformers: `python -m tests.golden.make_encoders`.

Each folder is as those of `make_bert_t5.py`.
"""

import transformers

from tests.golden.make_bert_t5 import FOLDER, write
from tests.support import reference


def main():
    """Writes all folders."""
    roberta = transformers.RobertaConfig(**reference.SIZES["roberta"], hidden_act="gelu_new", pad_token_id=3)
    groups = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
    albert = transformers.AlbertConfig(**{**reference.SIZES["albert"], **groups})
    distilbert = transformers.DistilBertConfig(**reference.SIZES["distilbert"])
    write(FOLDER / "roberta", reference.randomized(transformers.RobertaForMaskedLM, roberta))
    write(FOLDER / "albert", reference.randomized(transformers.AlbertForPreTraining, albert))
    write(FOLDER / "distilbert", reference.randomized(transformers.DistilBertForMaskedLM, distilbert))


if __name__ == "__main__":
    main()
