"""Noise and the basic private mechanisms; everything that is released draws from here."""

from dpml.mechanisms.gaussian import add_gaussian, gaussian_std
from dpml.mechanisms.lattice import Grid
from dpml.mechanisms.noise import FixedNoise, NoiseSource, Prefetch, SecretNoise, default_noise
from dpml.mechanisms.norm_gamma import add_norm_gamma, norm_gamma

__all__ = [
    "FixedNoise",
    "Grid",
    "NoiseSource",
    "Prefetch",
    "SecretNoise",
    "add_gaussian",
    "add_norm_gamma",
    "default_noise",
    "gaussian_std",
    "norm_gamma",
]
