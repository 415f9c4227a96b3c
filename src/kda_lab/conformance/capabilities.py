"""What an implementation declares that it can do. What it cannot is reported as unsupported, never as passed."""

import difflib
import inspect
from typing import NamedTuple

FEATURES = {
    "initial-state": "starts from a given state",
    "final-state": "returns the state after the last token",
    "varlen": "takes packed sequences (cu_seqlens)",
    "grouped-heads": "takes more value heads than key heads",
    "backward": "is differentiable",
    "fused-backward": "is differentiable through what it computes itself: gates, norm, sigmoid",
    "given-gate": "takes g as a log decay",
    "bounded-gate": "computes g = lower_bound sigmoid(exp(A_log) (x + dt_bias)) itself",
    "softplus-gate": "computes g = -exp(A_log) softplus(x + dt_bias) itself",
    "beta-logits": "applies the sigmoid to beta itself",
    "beta-to-two": "takes write gates between 1 and 2",
    "l2norm": "normalises q and k itself",
    "plain-keys": "takes q and k as they are, of any length up to 1",
    "scale": "takes a scale",
    "chunk-size": "takes a chunk_size",
    "strides": "takes inputs of any strides",
    "deterministic": "repeats its results bit by bit",
    "value-checks": "refuses values outside of the contract: g > 0, boundaries that fall",
    "shape-checks": "refuses shapes that do not fit",
    "norm-checks": "warns or refuses where keys are not normalised (only if claimed)",
    "graph": "can be captured in a CUDA graph",
}
DTYPES = ("float64", "float32", "float16", "bfloat16")
# significand bits of the operands of products, finest first
ARITHMETIC = {"float64": 53, "float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
# beyond the contract: examined only where they are claimed
CLAIMED = frozenset({"norm-checks"})
# which parameter of the signature carries a feature
CARRIERS = {
    "initial-state": "initial_state",
    "final-state": "output_final_state",
    "varlen": "cu_seqlens",
    "bounded-gate": "use_gate_in_kernel",
    "softplus-gate": "use_gate_in_kernel",
    "beta-logits": "use_beta_sigmoid_in_kernel",
    "l2norm": "use_qk_l2norm_in_kernel",
    "scale": "scale",
    "chunk-size": "chunk_size",
}


class Unsupported(Exception):
    """A case needs what the implementation declares that it cannot do."""


class Capabilities(NamedTuple):
    """Declared abilities: features that are missing, and limits.

    missing: names of FEATURES   dtypes: of q, k, v   sizes: pairs (K, V), or None for any   chunk: tokens of a chunk
    lowest_gate: the strongest log decay of a token   arithmetic: promised precision of products, or None to have it
    measured.

    >>> Capabilities(missing=frozenset({"varlen"})).can("varlen")
    False
    """

    missing: frozenset = CLAIMED
    dtypes: tuple = DTYPES
    sizes: tuple | None = None
    chunk: int = 64
    lowest_gate: float = float("-inf")
    arithmetic: str | None = None

    def can(self, feature):
        """Whether a feature is there. Raises KeyError for a name that is none."""
        FEATURES[feature]
        return feature not in self.missing

    def need(self, *features):
        """Raise Unsupported unless all of these features are there.

        >>> Capabilities(missing=frozenset({"varlen"})).need("varlen")
        Traceback (most recent call last):
        kda_lab.conformance.capabilities.Unsupported: varlen
        """
        lacking = [f for f in features if not self.can(f)]
        if lacking:
            raise Unsupported(", ".join(lacking))


def parse(text, base=None):
    """Capabilities from words with commas: ``no-FEATURE`` takes one, ``FEATURE`` gives it back, ``limit=value`` sets a
    limit.

    dtype=float32+bfloat16   sizes=128x128+64x64   chunk=16   lowest-gate=-5   arithmetic=tf32.
    base: what the words change.   Raises ValueError for a word or a value that is none.

    >>> c = parse("no-varlen, no-backward, sizes=128x128, chunk=16")
    >>> sorted(c.missing), c.sizes, c.chunk
    (['backward', 'norm-checks', 'varlen'], ((128, 128),), 16)
    >>> parse("no-varlenn")
    Traceback (most recent call last):
    ValueError: 'no-varlenn' is not a capability; close: no-varlen, varlen, no-scale
    """
    found = base or Capabilities()
    for word in filter(None, (w.strip() for w in (text or "").split(","))):
        name, _, value = word.partition("=")
        if value or "=" in word:
            found = found._replace(**limit(name, value))
        elif word.startswith("no-") and word[3:] in FEATURES:
            found = found._replace(missing=found.missing | {word[3:]})
        elif word in FEATURES:
            found = found._replace(missing=found.missing - {word})
        else:
            known = [f"no-{f}" for f in FEATURES] + list(FEATURES) + [f"{n}=" for n in LIMITS]
            near = difflib.get_close_matches(word, known, n=3)
            hint = (
                f"close: {', '.join(near)}"
                if near
                else "known: no-" + ", no-".join(FEATURES) + ", " + ", ".join(LIMITS)
            )
            raise ValueError(f"{word!r} is not a capability; {hint}")
    return found


def limit(name, value):
    """One limit as keyword of Capabilities.

    >>> limit("dtype", "bfloat16+float16")
    {'dtypes': ('bfloat16', 'float16')}
    """
    if name not in LIMITS:
        raise ValueError(f"{name!r} is not a limit; known: {', '.join(LIMITS)}")
    field, read, form = LIMITS[name]
    try:
        return {field: read(value)}
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {form}, got {value!r}") from None


def _dtypes(value):
    names = tuple(value.split("+"))
    if not set(names) <= set(DTYPES):
        raise ValueError
    return names


def _sizes(value):
    pairs = tuple(tuple(int(n) for n in pair.split("x")) for pair in value.split("+"))
    if any(len(pair) != 2 or min(pair) < 1 for pair in pairs):
        raise ValueError
    return pairs


def _positive(value):
    if int(value) < 1:
        raise ValueError
    return int(value)


def _negative(value):
    if not float(value) < 0:
        raise ValueError
    return float(value)


def _arithmetic(value):
    ARITHMETIC[value]
    return value


LIMITS = {
    "dtype": ("dtypes", _dtypes, "names joined by +, of " + ", ".join(DTYPES)),
    "sizes": ("sizes", _sizes, "KxV pairs joined by +, such as 128x128"),
    "chunk": ("chunk", _positive, "a positive integer"),
    "lowest-gate": ("lowest_gate", _negative, "a negative number"),
    "arithmetic": ("arithmetic", _arithmetic, "one of " + ", ".join(ARITHMETIC)),
}


def from_signature(function):
    """Features that a function cannot have, since its signature has no parameter for them.

    >>> def bare(q, k, v, g, beta): ...
    >>> sorted(from_signature(bare))[:3]
    ['beta-logits', 'bounded-gate', 'chunk-size']
    """
    names = parameters(function)
    return frozenset(f for f, carrier in CARRIERS.items() if names is not None and carrier not in names)


def parameters(function):
    """The names of a function's parameters, or None if it takes any.

    >>> sorted(parameters(lambda q, *, scale=None: q))
    ['q', 'scale']
    """
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in found.values()):
        return None
    return set(found)
