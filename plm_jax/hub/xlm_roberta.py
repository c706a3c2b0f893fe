"""XLM-R (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) in Hugging Face's format.

Both are RoBERTa with another vocabulary: SentencePiece in `tokenizer.json`, whose ids differ from those in the files of
SentencePiece by the special tokens at the beginning.
"""

from plm_jax.hub.roberta import RobertaFamily


class XlmRobertaFamily(RobertaFamily):
    """XLM-R, base and large."""

    kind = "xlm-roberta"
    name = "XLM-R"
    vocabulary_files = {}
    tokenizer_class = "XLMRobertaTokenizer"
    task_class = "XLMRoberta"


class CamembertFamily(RobertaFamily):
    """CamemBERT."""

    kind = "camembert"
    name = "CamemBERT"
    vocabulary_files = {}
    tokenizer_class = "CamembertTokenizer"
    task_class = "Camembert"
