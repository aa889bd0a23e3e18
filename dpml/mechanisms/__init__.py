"""Noise and the basic private mechanisms; everything that is released draws from here."""

from dpml.mechanisms.gaussian import add_gaussian, gaussian_std
from dpml.mechanisms.noise import FixedNoise, NoiseSource, SecretNoise, default_noise

__all__ = ["FixedNoise", "NoiseSource", "SecretNoise", "add_gaussian", "default_noise", "gaussian_std"]
