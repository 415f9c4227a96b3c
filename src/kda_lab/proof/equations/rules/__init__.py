"""The update rules, their gates, spectra, and what they minimise."""

from kda_lab.proof.equations.rules import delta, dplr, gates, kda, learning, proximal, relatives, sizes, spectrum

PARTS = (delta, spectrum, relatives, kda, sizes, gates, dplr, learning, proximal)
