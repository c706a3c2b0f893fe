"""Metrics of models that predict labels, in NumPy only, so that both training and `evaluate` can compute them.

spans.py    answers from the scores of start and end tokens
tags.py     entities from tags
metrics.py  metrics of each kind of label
"""
