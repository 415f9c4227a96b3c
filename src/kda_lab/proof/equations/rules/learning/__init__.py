"""The state as weights that learn while they read: losses, penalties, and steps that minimise exactly."""

from kda_lab.proof.equations.rules.learning import losses, penalty, proximal

PARTS = (losses, penalty, proximal)
EQUATIONS = [equation for part in PARTS for equation in part.EQUATIONS]
