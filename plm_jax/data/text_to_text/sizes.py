"""Numbers of training examples of each task: the rates of T5's mixtures before the limit and temperature are applied.

The sizes in GLUE and SuperGLUE come from `t5/data/glue_utils.py` and `mixtures.py` in
google-research/text-to-text-transfer-transformer. Other sizes are the sizes of training splits in the catalog of TFDS
or, for WMT15 and WMT16, in the catalog of Hugging Face. Tasks that are only evaluated are not listed. T5 excludes WNLI,
trains WSC only on rows with the correct noun, and adds definite pronoun resolution.
"""

GLUE = {
    "glue_cola": 8_551,
    "glue_sst2": 67_349,
    "glue_mrpc": 3_668,
    "glue_qqp": 363_849,
    "glue_stsb": 5_749,
    "glue_mnli": 392_702,
    "glue_qnli": 104_743,
    "glue_rte": 2_490,
}
SUPER_GLUE = {
    "dpr": 1_322,
    "super_glue_wsc": 259,
    "super_glue_boolq": 9_427,
    "super_glue_cb": 250,
    "super_glue_copa": 400,
    "super_glue_multirc": 27_243,
    "super_glue_record": 138_854,
    "super_glue_rte": 2_490,
    "super_glue_wic": 5_428,
}
SIZES = {
    **GLUE,
    **SUPER_GLUE,
    "squad": 87_599,
    "cnn_dailymail": 287_113,
    "wmt_t2t_ende": 4_592_289,
    "wmt15_enfr": 40_853_137,
    "wmt16_enro": 610_320,
}
# T5's `all_proportional` without C4. RTE is in both GLUE and SuperGLUE and counts half in each.
ALL = SIZES | {name: size / 2 for name, size in SIZES.items() if name.endswith("_rte")}
