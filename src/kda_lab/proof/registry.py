"""Equations, their checks and their mutants; and how one is judged.

An equation holds if its proof and its numeric check accept its subject, the implementation that the book quotes.
Each of its mutants is a full wrong implementation, and must be rejected.
"""

import importlib
import inspect
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kda_lab.data.lazy import modules
from kda_lab.proof.engines import Disagreement, Field, Real, Ring, run_claim

LEVELS = {
    "proved": "holds for every input: exact algebra at the sizes shown, or for all sizes",
    "checked": "computed on many inputs and found equal; not a proof",
}


@dataclass(frozen=True)
class Check:
    """One way of trying a subject. ``run(subject)`` raises Disagreement or returns None.

    engine: "ring", "words", "field", "calculus" or "float64"   sizes: what it covers, for the reader.

    >>> Check("float64", "one number", lambda f: None).engine
    'float64'
    """

    engine: str
    sizes: str
    run: Callable[[Any], None]


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation that the equation's checks must reject.

    >>> Mutant("reads before the decay", len).name
    'reads before the decay'
    """

    name: str
    subject: Any


@dataclass(frozen=True)
class Equation:
    """An identity of the book. ``slug`` is its only name: label, registry key, test id and CUDA marker.

    >>> Equation("twice", "x + x = 2 x", "school", "checked", Check("float64", "n = 1", lambda f: None), None, abs).slug
    'twice'
    """

    slug: str
    sentence: str
    source: str
    level: str
    proof: Check
    numeric: Check | None
    subject: Any
    mutants: tuple[Mutant, ...] = ()

    def checks(self):
        """The proof and, where it is a different check, the numeric one."""
        return [c for c in (self.proof, self.numeric) if c is not None]


@dataclass
class Verdict:
    """What came out for one equation.   seconds: wall time   failure: why it does not hold, or None.

    >>> Verdict("twice", "checked", "float64", "n = 1", 0.1, None, [("thrice", "float64")]).ok
    True
    """

    slug: str
    level: str
    engine: str
    sizes: str
    seconds: float
    failure: str | None
    mutants: list = field(default_factory=list)  # (name, engine that rejected it or None)

    @property
    def holds(self):
        return self.failure is None

    @property
    def ok(self):
        return self.holds and all(by for _, by in self.mutants)


def parts(package, file, order):
    """The modules of a package that have equations: those of `order`, as in the book, then the others by name.

    file: the package's own ``__file__``.

    >>> from kda_lab.proof.equations import serving
    >>> [m.__name__.rpartition(".")[2] for m in parts(serving.__name__, serving.__file__, ["rollback"])]
    ['rollback', 'replay']
    """
    names = list(dict.fromkeys([*order, *modules(file)]))
    found = [importlib.import_module(f"{package}.{name}") for name in names]
    return tuple(module for module in found if hasattr(module, "EQUATIONS"))


def variant(function, *patches, **extra):
    """A full wrong implementation: the function's own source with snippets replaced, compiled in its module.

    patches: (old, new) pairs; each old must occur exactly once, so that a mutant cannot outlive the line that it
    changes (ValueError).   extra: names that the new lines use.

    >>> from kda_lab.algebra import triangular
    >>> import numpy as np
    >>> wrong = variant(triangular.merge, ("return -(", "return ("))
    >>> wrong(np.array([[1]]), np.array([[2]]), np.array([[1]]))
    array([[2]])
    """
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in patches:
        if (n := source.count(old)) != 1:
            raise ValueError(f"{old!r} occurs {n} times in {function.__qualname__}; a patch must match exactly once")
        source = source.replace(old, new)
    scope = dict(function.__globals__)
    scope.update(extra)
    exec(compile(source, f"<variant of {function.__qualname__}>", "exec"), scope)
    return scope[function.__name__]


def wrong(function, name, *patches, **extra):
    """A mutant of a function: its own source with one mistake. Arguments as for ``variant``.

    >>> from kda_lab.algebra import triangular
    >>> wrong(triangular.merge, "the sign", ("return -(", "return (")).name
    'the sign'
    """
    return Mutant(name, variant(function, *patches, **extra))


def polynomial(
    slug, sentence, source, *, shapes, claim, subject, mutants, ring=(), field_sizes=(), real=(), tolerance=1e-10
):
    """An equation between polynomials: one claim, tried as polynomials, over a finite field and in float64.

    ring, field_sizes, real: dicts of sizes. With ring sizes the level is "proved" (for those sizes; value rows and
    further tokens follow by the argument on the page), with field sizes alone it is proved up to 2^-50.

    >>> polynomial("twice", "x + x = 2 x", "school", shapes="x:n", claim=lambda x, f: [(f(x.x), x.x * 2)],
    ...            subject=lambda a: a + a, mutants=(), ring=[{"n": 1}]).level
    'proved'
    """
    exact = [(Ring(), s) for s in ring] + [(Field(), s) for s in field_sizes]
    floats = [(Real(weak=w, tolerance=tolerance), s) for s in real or (ring or field_sizes)[-1:] for w in (False, True)]

    def runner(plan):
        def run(subject):
            for engine, sizes in plan:
                run_claim(engine, shapes, sizes, claim, subject)

        return run

    def label(plan):
        return "; ".join(dict.fromkeys(" ".join(f"{k}={v}" for k, v in s.items()) for _, s in plan))

    numeric = Check("float64", label(floats), runner(floats))
    if not exact:
        return Equation(slug, sentence, source, "checked", numeric, None, subject, tuple(mutants))
    engine = "+".join(dict.fromkeys(e.name for e, _ in exact))
    return Equation(
        slug, sentence, source, "proved", Check(engine, label(exact), runner(exact)), numeric, subject, tuple(mutants)
    )


def rejected_by(equation, subject):
    """The engine whose check rejects a subject, or None. Any error other than Disagreement is passed on."""
    for check in reversed(equation.checks()):  # floats first: they are cheap
        try:
            check.run(subject)
        except Disagreement:
            return check.engine
    return None


def judge(equation):
    """Try an equation and all its mutants.

    >>> judge(polynomial("twice", "x + x = 2 x", "school", shapes="x:n", claim=lambda x, f: [(f(x.x), x.x * 2)],
    ...       subject=lambda a: a + a, mutants=[Mutant("thrice", lambda a: a * 3)], ring=[{"n": 1}])).ok
    True
    """
    start = time.perf_counter()
    failure = None
    for check in equation.checks():
        try:
            check.run(equation.subject)
        except Exception as error:  # an implementation that crashes does not hold either
            failure = f"{type(error).__name__}: {error}"
            break
    mutants = [(m.name, rejected_by(equation, m.subject)) for m in equation.mutants] if failure is None else []
    proof = equation.proof
    seconds = time.perf_counter() - start
    return Verdict(equation.slug, equation.level, proof.engine, proof.sizes, seconds, failure, mutants)
