"""Fréchet distance and inception score, against closed forms."""

import numpy as np
import pytest

from trainer.metrics.gan_quality import frechet_distance, inception_score


def with_moments(mean, covariance, count=400):
    """Return examples whose sample mean and covariance are exactly these, up to rounding."""
    raw = np.random.default_rng(0).normal(size=(count, len(mean)))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(np.atleast_2d(np.cov(raw, rowvar=False)))).T
    return white @ np.linalg.cholesky(np.asarray(covariance, float)).T + mean


def test_distance_does_not_depend_on_the_basis():
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    first = with_moments([0.0, 1.0, 2.0], [[2, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 3]])
    second = with_moments([1.0, 1.0, 0.0], [[1, 0.3, 0.1], [0.3, 2, 0], [0.1, 0, 1]])
    # The product of these two is not symmetric: against the eigenvalues of the plain product.
    product = np.cov(first, rowvar=False) @ np.cov(second, rowvar=False)
    root_trace = np.sqrt(np.linalg.eigvals(product).astype(complex)).sum().real
    traces = 2 + 1 + 3 + 1 + 2 + 1
    expected = 1 + 0 + 4 + traces - 2 * root_trace
    np.testing.assert_allclose(frechet_distance(first, second), expected, rtol=1e-9)
    turned = frechet_distance(first @ rotation, second @ rotation)
    np.testing.assert_allclose(turned, expected, rtol=1e-9)


def test_distance_of_the_same_examples_is_zero_also_with_a_constant_feature():
    examples = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    examples[:, 2] = 1.0
    assert frechet_distance(examples, examples) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        (np.eye(4), 4.0),
        (np.full((5, 4), 0.25), 1.0),
        (np.repeat(np.eye(4)[:1], 3, axis=0), 1.0),
        # Two kinds of examples: exp(H(1/2) - H(0.9)).
        ([[0.9, 0.1], [0.1, 0.9]], np.exp(np.log(2) + 0.9 * np.log(0.9) + 0.1 * np.log(0.1))),
    ],
)
def test_inception_score_follows_its_definition(probabilities, expected):
    score = inception_score(np.asarray(probabilities, np.float32))
    np.testing.assert_allclose(score, expected, rtol=1e-6)


def test_scores_of_examples_that_are_not_finite_are_nan():
    features = np.random.default_rng(0).normal(size=[8, 3])
    assert np.isnan(frechet_distance(np.full([8, 3], np.nan), features))
    assert np.isnan(inception_score(np.full([8, 3], np.nan)))
