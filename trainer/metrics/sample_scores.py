"""Scores of generated examples, from a classifier's features and probabilities, in NumPy."""

from __future__ import annotations

import numpy as np


def frechet_distance(features: np.ndarray, others: np.ndarray) -> float:
    """Return the Fréchet distance of two sets of features (Heusel et al. 2017).

    That of two normal distributions with their means m and covariances S:
    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)).

    Args:
        features: [N, D], N at least 2.
        others: [M, D], M at least 2.
    """
    first = features.astype(np.float64)
    second = others.astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    shift = first.mean(axis=0) - second.mean(axis=0)
    covariance = np.atleast_2d(np.cov(first, rowvar=False))
    other_covariance = np.atleast_2d(np.cov(second, rowvar=False))
    # S1 S2 has the eigenvalues of the symmetric S1^(1/2) S2 S1^(1/2).
    root = _square_root(covariance)
    product_root = _square_root(root @ other_covariance @ root)
    trace = np.trace(covariance) + np.trace(other_covariance) - 2.0 * np.trace(product_root)
    # A sum of squares, whose rounding error may be negative.
    return max(0.0, float(shift @ shift + trace))


def inception_score(probabilities: np.ndarray) -> float:
    """Return exp of the mean divergence of p(y | x) from p(y) (Salimans et al. 2016).

    It is 1 where all examples look alike to the classifier, and the number of classes where each
    is clearly of one class and all classes are as frequent.

    Args:
        probabilities: [N, classes], N at least 1; each row adds up to 1.
    """
    given = probabilities.astype(np.float64)
    marginal = given.mean(axis=0)
    # 0 log 0 is 0.
    ratio = np.where(given > 0, given, 1.0) / np.where(given > 0, marginal, 1.0)
    return float(np.exp((given * np.log(ratio)).sum(axis=1).mean()))


def _square_root(matrix: np.ndarray) -> np.ndarray:
    """Return the root of a symmetric matrix without negative eigenvalues but for rounding."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
