"""The update rules, their gates, spectra, and what they minimise."""

from kda_lab.proof.equations.rules import (
    delta,
    delta_runs,
    dplr,
    element_gates,
    gates,
    gdn2,
    kda,
    learning,
    relatives,
    sizes,
    spectrum,
)

PARTS = (delta, delta_runs, spectrum, relatives, kda, element_gates, gdn2, sizes, gates, dplr, learning)
