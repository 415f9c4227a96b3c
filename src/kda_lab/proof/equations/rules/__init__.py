"""The update rules, their gates, spectra, and what they minimise."""

from kda_lab.proof.equations.rules import (
    delta,
    dplr,
    element_gates,
    gates,
    gdn2,
    kda,
    learning,
    penalty,
    proximal,
    relatives,
    sizes,
    spectrum,
)

PARTS = (delta, spectrum, relatives, kda, element_gates, gdn2, sizes, gates, dplr, learning, penalty, proximal)
