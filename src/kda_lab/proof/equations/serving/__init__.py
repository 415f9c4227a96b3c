"""Going back and replaying, as a server does."""

from kda_lab.proof.equations.serving import replay, rollback

PARTS = (rollback, replay)
