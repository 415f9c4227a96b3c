"""The update rules, their gates, spectra, and what they minimise."""

from kda_lab.proof.registry import parts

# in the order of the book; a module that is not named here comes behind the others
ORDER = "delta delta_runs spectrum relatives kda element_gates sizes gates dplr learning"
PARTS = parts(__name__, __file__, ORDER.split())
