"""The registry: every equation of the book, a module for each part.

>>> len({e.slug for e in EQUATIONS}) == len(EQUATIONS)
True
"""

from kda_lab.equations import (
    affine, backward, batched, capacity, chunk, chunk_steps, costs, decays, delta, dplr, features, fused_chunk, gates, gauge, inverse, kda, learning, linear, position, proximal, relatives,
    replay, rollback, scan, sizes, softmax, spectrum, stability,
)  # fmt: skip
from kda_lab.proof import display, registry

# in the order of the book
PARTS = (
    softmax, linear, features, delta, spectrum, relatives, kda, sizes, gates, dplr, learning, proximal, position, capacity, affine, decays, inverse, batched, stability, chunk, chunk_steps,
    scan, gauge, fused_chunk, backward, costs, rollback, replay,
)  # fmt: skip
EQUATIONS = [equation for part in PARTS for equation in part.EQUATIONS]
_BY_SLUG = {e.slug: e for e in EQUATIONS}


def equation(slug):
    """The equation with this slug. Raises KeyError with the nearest slugs.

    >>> equation("chunk-state").level
    'proved'
    """
    if slug not in _BY_SLUG:
        import difflib

        near = difflib.get_close_matches(slug, _BY_SLUG, n=3)
        raise KeyError(f"no equation has the slug {slug!r}; " + (f"close: {', '.join(near)}" if near else "see EQUATIONS for all"))
    return _BY_SLUG[slug]


def prove(*slugs):
    """Judge equations and their mutants here and now, and show the verdicts. Raises AssertionError if one fails.

    >>> prove("chunk-transition-step")[0].ok
    True
    """
    verdicts = display.Verdicts(registry.judge(equation(slug)) for slug in slugs)
    failed = [v for v in verdicts if not v.ok]
    if failed:
        raise AssertionError(repr(display.Verdicts(failed)))
    return verdicts
