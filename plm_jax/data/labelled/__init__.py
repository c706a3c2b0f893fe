"""What is measured of a model that tells labels: NumPy alone, so that training and `evaluate` both can.

spans.py    the answer that scores of begins and ends give
tags.py     the entities that tags say
metrics.py  the figures of each form
"""
