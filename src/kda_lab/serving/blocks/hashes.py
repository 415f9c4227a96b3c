"""Chained hashes: one digest stands for a whole prefix.

Only full units of ``unit`` tokens are hashed. The key of a block in group ``g`` is ``(digest, g)``, where the digest
is the chain's at the block's last unit; a partial block's key is the digest at the boundary inside it.
"""

import hashlib
from array import array


def extend_chain(chain, tokens, unit, salt=b""):
    """Append the digests of the full units of ``tokens`` that ``chain`` does not have yet, in place.

    chain: list of bytes   tokens: sequence of int   unit: tokens a digest   salt: what else the cached numbers depend
    on (an adapter, an image).   H_i = f(H_(i-1), tokens of unit i, salt).

    >>> chain = []
    >>> extend_chain(chain, [1, 2, 3, 4, 5], 2); len(chain)          # the fifth token fills no unit
    2
    >>> other = []
    >>> extend_chain(other, [1, 2, 3, 9], 2); other[0] == chain[0], other[1] == chain[1]
    (True, False)
    """
    for i in range(len(chain), len(tokens) // unit):
        digest = hashlib.blake2b(chain[-1] if chain else b"", digest_size=16)
        digest.update(array("q", tokens[i * unit : (i + 1) * unit]).tobytes())
        digest.update(salt)
        chain.append(digest.digest())


def digest_at(chain, tokens, unit):
    """The digest of the first ``tokens`` tokens, a positive multiple of the unit.

    >>> chain = []
    >>> extend_chain(chain, range(6), 2); digest_at(chain, 4, 2) == chain[1]
    True
    """
    return chain[tokens // unit - 1]
