"""Going back and replaying, as a server does."""

from kda_lab.proof.registry import parts

# in the order of the book; a module that is not named here comes behind the others
ORDER = "rollback replay"
PARTS = parts(__name__, __file__, ORDER.split())
