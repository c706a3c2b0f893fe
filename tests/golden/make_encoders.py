"""Writes the golden files of BERT's kin with transformers: `python -m tests.golden.make_encoders`.

Each folder is as those of `make_bert_t5.py`.
"""

import transformers

from tests.golden.make_bert_t5 import FOLDER, write
from tests.support import theirs


def main():
    """Writes all folders."""
    roberta = transformers.RobertaConfig(**theirs.SIZES["roberta"], hidden_act="gelu_new", pad_token_id=3)
    groups = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
    albert = transformers.AlbertConfig(**{**theirs.SIZES["albert"], **groups})
    distilbert = transformers.DistilBertConfig(**theirs.SIZES["distilbert"])
    write(FOLDER / "roberta", theirs.randomized(transformers.RobertaForMaskedLM, roberta))
    write(FOLDER / "albert", theirs.randomized(transformers.AlbertForPreTraining, albert))
    write(FOLDER / "distilbert", theirs.randomized(transformers.DistilBertForMaskedLM, distilbert))


if __name__ == "__main__":
    main()
