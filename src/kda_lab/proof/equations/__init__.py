"""The registry: every equation of the book, a module for each part.

>>> len({e.slug for e in EQUATIONS}) == len(EQUATIONS)
True
"""

from kda_lab.proof import display, registry
from kda_lab.proof.equations import chunk, index, memory, rules, serving  # noqa: F401

# in the order of the book, as far as one part needs another
PARTS = (*memory.PARTS, *rules.PARTS, *chunk.PARTS, *serving.PARTS)
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
        raise KeyError(
            f"no equation has the slug {slug!r}; " + (f"close: {', '.join(near)}" if near else "see EQUATIONS for all")
        )
    return _BY_SLUG[slug]


def prove(*slugs: str) -> display.Verdicts:
    """Judge equations and their mutants here and now, and show the verdicts. Raises AssertionError if one fails.

    >>> prove("chunk-transition-step")[0].ok
    True
    """
    verdicts = display.Verdicts(registry.judge(equation(slug)) for slug in slugs)
    failed = [v for v in verdicts if not v.ok]
    if failed:
        raise AssertionError(repr(display.Verdicts(failed)))
    return verdicts
