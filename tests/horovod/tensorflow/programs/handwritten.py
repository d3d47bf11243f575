"""The data set of the programs of this folder, in place of the data set that they would download."""

import numpy as np
from sklearn.datasets import load_digits


def load_data():
    """((images, labels), (test images, test labels)): uint8 (N, 8, 8) in 0..255, uint8 (N,), in a fixed order."""
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1437], order[1437:]
    return (images[train], labels[train]), (images[test], labels[test])
