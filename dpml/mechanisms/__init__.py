"""Noise and the basic private mechanisms; everything that is released draws from here.

The mechanisms are resolved when they are first used, so that the noise alone loads no accounting.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpml.mechanisms.lattice import Grid
from dpml.mechanisms.noise import FixedNoise, NoiseSource, Prefetch, SecretNoise, default_noise
from dpml.mechanisms.norm_gamma import add_norm_gamma, norm_gamma

if TYPE_CHECKING:
    from dpml.mechanisms.answers import Answer
    from dpml.mechanisms.custom import Custom, Vector
    from dpml.mechanisms.discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
    from dpml.mechanisms.gaussian import GaussianMechanism, add_gaussian, gaussian_std
    from dpml.mechanisms.histogram import ThresholdedHistogram
    from dpml.mechanisms.laplace import LaplaceMechanism
    from dpml.mechanisms.metric import MetricMechanism
    from dpml.mechanisms.noisy_max import ReportNoisyMax, noisy_max_probabilities
    from dpml.mechanisms.permute_and_flip import PermuteAndFlipMechanism, permute_and_flip_probabilities
    from dpml.mechanisms.predicates import Where
    from dpml.mechanisms.quantiles import QuantileMechanism, rank_sensitivity
    from dpml.mechanisms.queries import Count, Histogram, Mean, Quantile, Sum, Variance
    from dpml.mechanisms.randomized_response import RandomizedResponseMechanism
    from dpml.mechanisms.selection import (
        ExponentialMechanism,
        expected_score,
        exponential_probabilities,
        utility_gap,
    )
    from dpml.mechanisms.sensitivity_search import check_sensitivity
    from dpml.mechanisms.session import ApproxBudget, PrivateSession, PureBudget, ZCDPBudget
    from dpml.mechanisms.sparse_vector import AboveThreshold

_HOME = {  # a public name and the module of dpml.mechanisms that has it
    "AboveThreshold": "sparse_vector",
    "Answer": "answers",
    "ApproxBudget": "session",
    "Count": "queries",
    "Custom": "custom",
    "DiscreteGaussianMechanism": "discrete",
    "DiscreteLaplaceMechanism": "discrete",
    "ExponentialMechanism": "selection",
    "GaussianMechanism": "gaussian",
    "Histogram": "queries",
    "LaplaceMechanism": "laplace",
    "Mean": "queries",
    "MetricMechanism": "metric",
    "PermuteAndFlipMechanism": "permute_and_flip",
    "PrivateSession": "session",
    "PureBudget": "session",
    "Quantile": "queries",
    "QuantileMechanism": "quantiles",
    "RandomizedResponseMechanism": "randomized_response",
    "ReportNoisyMax": "noisy_max",
    "Sum": "queries",
    "ThresholdedHistogram": "histogram",
    "Variance": "queries",
    "Vector": "custom",
    "Where": "predicates",
    "ZCDPBudget": "session",
    "add_gaussian": "gaussian",
    "check_sensitivity": "sensitivity_search",
    "expected_score": "selection",
    "exponential_probabilities": "selection",
    "gaussian_std": "gaussian",
    "noisy_max_probabilities": "noisy_max",
    "permute_and_flip_probabilities": "permute_and_flip",
    "rank_sensitivity": "quantiles",
    "utility_gap": "selection",
}

__all__ = [
    "AboveThreshold",
    "Answer",
    "ApproxBudget",
    "Count",
    "Custom",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "ExponentialMechanism",
    "FixedNoise",
    "GaussianMechanism",
    "Grid",
    "Histogram",
    "LaplaceMechanism",
    "Mean",
    "MetricMechanism",
    "NoiseSource",
    "PermuteAndFlipMechanism",
    "Prefetch",
    "PrivateSession",
    "PureBudget",
    "Quantile",
    "QuantileMechanism",
    "RandomizedResponseMechanism",
    "ReportNoisyMax",
    "SecretNoise",
    "Sum",
    "ThresholdedHistogram",
    "Variance",
    "Vector",
    "Where",
    "ZCDPBudget",
    "add_gaussian",
    "add_norm_gamma",
    "check_sensitivity",
    "default_noise",
    "expected_score",
    "exponential_probabilities",
    "gaussian_std",
    "noisy_max_probabilities",
    "norm_gamma",
    "permute_and_flip_probabilities",
    "rank_sensitivity",
    "utility_gap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dpml.mechanisms' has no attribute {name!r}")
    return getattr(import_module(f"dpml.mechanisms.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
