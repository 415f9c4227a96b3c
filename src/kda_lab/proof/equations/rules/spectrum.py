"""What one transition may do to the state: eigenvalues, norms, and what a beta above 1 buys."""

import math

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.algebra import affine
from kda_lab.proof.engines import Field, run_claim, stack
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant

DELTA = "Yang et al. (2024), Parallelizing linear transformers with the delta rule"
GRAZZI = "Grazzi et al. (2024), Unlocking state-tracking in linear RNNs through negative eigenvalues"
KIMI = "Kimi Linear (2025), section 3"


def delta_polynomial(x, k, beta):
    """det(x I - (I - beta k k^T)) = (x - 1)^(K-1) (x - 1 + beta |k|^2).   Implements delta-spectrum.

    >>> delta_polynomial(sympy.Symbol("x"), (1, 1), 1)
    (x - 1)*(x + 1)
    """
    return (x - 1) ** (len(k) - 1) * (x - 1 + beta * sum(c * c for c in k))


def prove_delta_spectrum(polynomial_of):
    """K = 1..4, symbolic key and gate; K = 1 has no eigenvalue 1."""
    x, beta = sympy.symbols("x beta")
    for K in (1, 2, 3, 4):
        k = sympy.symbols(f"k:{K}")
        T = sympy.Matrix(affine.transition(np.array(k, dtype=object), 1, beta))
        exact = T.charpoly(x).as_expr()
        require(sympy.expand(exact - polynomial_of(x, k, beta)) == 0, f"K = {K}")


def check_delta_spectrum(polynomial_of):
    """At each eigenvalue of a transition, the polynomial vanishes; between them it does not."""
    for K in (2, 5):
        k, beta = normal(K, seed=K), 0.7
        values = torch.linalg.eigvalsh(affine.transition(k, 1.0, beta))
        share = beta * k.square().sum()
        agree(values, torch.cat([(1 - share)[None], torch.ones(K - 1, dtype=torch.float64)]).sort().values, f"K = {K}")
        require(abs(polynomial_of(1 - share, k, beta)) < 1e-9, f"K = {K}: 1 - beta |k|^2 is not a root")
        require(abs(polynomial_of(torch.tensor(0.5), k, beta)) > 1e-9, f"K = {K}: 0.5 is no eigenvalue")


def delta_norm(k, beta):
    """|I - beta k k^T| = max(1, |1 - beta |k|^2|) for K >= 2; the second alone for K = 1.   Implements delta-norm.

    k: [K]   beta: scalar   returns a scalar: the largest stretch of any row of the state.

    >>> delta_norm(torch.tensor([1.0, 0.0]), 3.0).item()
    2.0
    """
    along = (1 - beta * k.square().sum()).abs()
    return along if len(k) == 1 else along.clamp(min=1.0)


def check_delta_norm(norm):
    """The largest singular value itself; at most 1 exactly when 0 <= beta |k|^2 <= 2, which is wider than beta <= 1."""
    for K in (1, 2, 5):
        for share in (-0.2, 0.0, 0.5, 1.0, 1.5, 2.0, 2.2, 9.0):
            k = normal(K, seed=3)
            k = k / k.norm() * 1.7
            beta = share / 1.7**2
            exact = torch.linalg.matrix_norm(affine.transition(k, 1.0, beta), 2)
            agree(norm(k, beta), exact, f"K = {K}, beta |k|^2 = {share}")
            require(
                (norm(k, beta) <= 1 + 1e-12) == (0 <= share <= 2), f"K = {K}: non-expansive at beta |k|^2 = {share}?"
            )


def transition_bound(k, alpha, beta):
    """|Diag(alpha)(I - beta k k^T)| <= max alpha . max(1, |1 - beta |k|^2|).   Implements transition-norm.

    k, alpha: [K]   beta: scalar   returns a scalar.

    >>> transition_bound(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.25]), 1.0).item()
    0.5
    """
    return alpha.max() * (1 - beta * k.square().sum()).abs().clamp(min=1.0)


def check_transition_bound(bound):
    """Never above; attained with one decay for all channels; at most 1 for 0 <= beta |k|^2 <= 2."""
    generator = torch.Generator().manual_seed(4)
    for trial in range(120):
        K = 1 + trial % 5
        k = torch.randn(K, generator=generator, dtype=torch.float64)
        alpha = torch.rand(K, generator=generator, dtype=torch.float64) ** (0.1 if trial % 2 else 2)
        share = 3.0 * torch.rand((), generator=generator, dtype=torch.float64)
        beta = share / k.square().sum()
        exact = torch.linalg.matrix_norm(affine.transition(k, alpha, beta), 2)
        require(
            exact <= bound(k, alpha, beta) * (1 + 1e-12), f"trial {trial}: a norm of {exact:.3f} is above the bound"
        )
        if share <= 2:
            require(bound(k, alpha, beta) <= 1, f"trial {trial}: the bound exceeds 1 although beta |k|^2 = {share:.2f}")
        uniform = torch.full_like(alpha, 0.8)
        if K > 1:
            exact = torch.linalg.matrix_norm(affine.transition(k, uniform, beta), 2)
            agree(bound(k, uniform, beta), exact, f"trial {trial}: not attained with one decay")


def key_image(k, alpha, beta):
    """T k = (1 - beta |k|^2) (alpha . k): a multiple of k only if the decays agree.   Implements kda-transition-key.

    >>> import numpy as np
    >>> key_image(np.array([1, 1]), np.array([2, 3]), 1)
    array([-2, -3])
    """
    return alpha * k * (1 - k @ k * beta)


def claim_key_image(x, image):
    yield affine.transition(x.k, x.alpha, x.beta) @ x.k, image(x.k, x.alpha, x.beta)


def symmetric_form(k, root, beta):
    """M = Diag(root) (I - beta k k^T) Diag(root), similar to T when root^2 = alpha.   Implements kda-spectrum.

    >>> import numpy as np
    >>> symmetric_form(np.array([1, 1]), np.array([2, 3]), 1)
    array([[ 0, -6],
           [-6,  0]])
    """
    return (affine.eye(k) - rules.outer(k, k) * beta) * root[:, None] * root[None, :]


def claim_similar(x, form):
    """T Diag(root) = Diag(root) M, and M is symmetric: T has the real eigenvalues of M."""
    M = form(x.k, x.root, x.beta)
    yield affine.transition(x.k, x.root * x.root, x.beta) * x.root[None, :], M * x.root[:, None]
    yield M, M.T


def negative_eigenvalues(k, alpha, beta):
    """How many eigenvalues of Diag(alpha)(I - beta k k^T) are negative: one if beta |k|^2 > 1, else none.

    k, alpha: [K], alpha > 0   beta: scalar   returns an int.   Implements kda-negative-eigenvalue.

    >>> negative_eigenvalues(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.9]), 0.6)
    1
    """
    return int(beta * k.square().sum() > 1)


def check_negative_eigenvalues(count):
    generator = torch.Generator().manual_seed(5)
    for trial in range(80):
        K = 1 + trial % 5
        k = torch.randn(K, generator=generator, dtype=torch.float64)
        alpha = 0.05 + 0.95 * torch.rand(K, generator=generator, dtype=torch.float64)
        beta = (0.3, 0.97, 1.03, 1.9)[trial % 4] / k.square().sum()
        values = torch.linalg.eigvals(affine.transition(k, alpha, beta))
        require(values.imag.abs().max() < 1e-9, f"trial {trial}: a complex eigenvalue")
        require(int((values.real < -1e-12).sum()) == count(k, alpha, beta), f"trial {trial}: {values.real}")


def determinant(k, alpha, beta):
    """det T = (product of alpha) (1 - beta |k|^2): the step can be undone unless beta |k|^2 = 1.   Implements
    kda-determinant.

    >>> import numpy as np
    >>> determinant(np.array([1, 1]), np.array([2, 3]), 1)
    np.int64(-6)
    """
    product = alpha[0]
    for a in alpha[1:]:
        product = product * a
    return product * (1 - k @ k * beta)


def claim_determinant(x, det):
    T = affine.transition(x.k, x.alpha, x.beta)
    exact = sum(
        T[0, i] * (T[1, (i + 1) % 3] * T[2, (i + 2) % 3] - T[1, (i + 2) % 3] * T[2, (i + 1) % 3]) for i in range(3)
    )
    yield det(x.k, x.alpha, x.beta), exact


def rotation(a, b):
    """The turn by twice the angle from key a to key b, as it acts on rows of the state.   a, b: [2]   returns [2, 2].

    Implements delta-reflections.

    >>> e1, e2 = torch.eye(2)
    >>> rotation(e1, e2).tolist()                                 # mirrors at a right angle: half a turn
    [[-1.0, 0.0], [-0.0, -1.0]]
    """
    c, s, n = a @ b, a[0] * b[1] - a[1] * b[0], (a @ a) * (b @ b)
    cosine, sine = (c * c - s * s) / n, c * s * 2 / n
    return stack([stack([cosine, sine]), stack([-sine, cosine])])


def claim_reflections(x, turn):
    """beta |k|^2 = 2: each step mirrors, two of them rotate."""
    one, two = (affine.transition(k, 1, 2 / (k @ k)) for k in (x.a, x.b))
    yield one @ one, affine.eye(x.a)
    yield one @ two, turn(x.a, x.b)


def prove_reflections(turn):
    run_claim(Field(), "a:K b:K", {"K": 2}, claim_reflections, turn)


def check_reflections(turn):
    """Unit keys at known angles; the rotation has a complex pair of eigenvalues, which no single step has."""
    for first, second in ((0.3, 1.1), (2.0, -0.7), (0.5, 0.5)):
        a, b = (torch.tensor([math.cos(t), math.sin(t)], dtype=torch.float64) for t in (first, second))
        c, s = math.cos(2 * (second - first)), math.sin(2 * (second - first))
        agree(turn(a, b), torch.tensor([[c, s], [-s, c]], dtype=torch.float64), f"angles {first}, {second}")
        both = affine.transition(a, 1.0, 2.0) @ affine.transition(b, 1.0, 2.0)
        require(first == second or torch.linalg.eigvals(both).imag.abs().max() > 0.1, "expected a complex pair")


def parity(bits, rule=rules.delta):
    """The sign that a state of one number holds after beta_t = 2 bit_t and v = 0: -1 for an odd number of ones.

    Implements delta-parity.

    >>> parity([1, 0, 1, 1])
    -1.0
    """
    one = torch.ones(1, dtype=torch.float64)
    S, _ = rules.scan(lambda S, bit: rule(S, one, one, one * 0, 2.0 * bit), torch.ones(1, 1, dtype=torch.float64), bits)
    return S.item()


def check_parity(parity):
    for n in range(32):
        bits = [(n >> i) & 1 for i in range(5)]
        require(parity(bits) == (-1) ** sum(bits), f"bits {bits}")


EQUATIONS = [
    Equation(
        "delta-spectrum",
        "I - beta k k^T has eigenvalue 1 - beta |k|^2 once, along k, and 1 otherwise.",
        DELTA,
        "proved",
        Check("calculus", "K=1..4", prove_delta_spectrum),
        Check("float64", "K=2, 5", check_delta_spectrum),
        delta_polynomial,
        (
            Mutant("1 - beta, for any length of key", lambda x, k, beta: (x - 1) ** (len(k) - 1) * (x - 1 + beta)),
            Mutant("1 with full multiplicity", lambda x, k, beta: (x - 1) ** len(k)),
            Mutant("along every direction", lambda x, k, beta: (x - 1 + beta * sum(c * c for c in k)) ** len(k)),
            Mutant("the sign", lambda x, k, beta: delta_polynomial(x, k, -beta)),
        ),
    ),
    Equation(
        "delta-norm",
        "The norm of I - beta k k^T is max(1, |1 - beta |k|^2|): it does not expand exactly for 0 <= beta |k|^2 <= 2.",
        DELTA,
        "checked",
        Check("float64", "K=1, 2, 5, beta |k|^2 from -0.2 to 9", check_delta_norm),
        None,
        delta_norm,
        (
            Mutant(
                "never expands, for any beta",
                lambda k, beta: torch.ones((), dtype=torch.float64) if len(k) > 1 else delta_norm(k, beta),
            ),
            Mutant("for keys of any norm", lambda k, beta: delta_norm(k / k.norm(), beta)),
            Mutant("K = 1 has an eigenvalue 1 too", lambda k, beta: (1 - beta * k.square().sum()).abs().clamp(min=1.0)),
        ),
    ),
    Equation(
        "delta-reflections",
        "With beta = 2 a unit key mirrors the state; two mirrors rotate it by twice the angle between them.",
        GRAZZI,
        "proved",
        Check("field", "K=2", prove_reflections),
        Check("float64", "three pairs of angles", check_reflections),
        rotation,
        (
            Mutant("the angle once", variant(rotation, ("(c * c - s * s) / n, c * s * 2 / n", "c, s"))),
            Mutant("the other direction", lambda a, b: rotation(b, a)),
            Mutant("no rotation", lambda a, b: rotation(a, a)),
        ),
    ),
    Equation(
        "delta-parity",
        "With beta in {0, 2} one number of state tracks parity.",
        GRAZZI,
        "checked",
        Check("float64", "all strings of 5 bits", check_parity),
        None,
        parity,
        (
            Mutant("beta at most 1", lambda bits: parity([b / 2 for b in bits])),
            Mutant(
                "adds without erasing",
                lambda bits: parity(bits, lambda S, q, k, v, beta: rules.linear(S, q, k, v * beta)),
            ),
            Mutant("beta = 2 for every token", lambda bits: parity([1] * len(bits))),
        ),
    ),
    Equation(
        "transition-norm",
        "The norm of Diag(alpha)(I - beta k k^T) is at most max alpha times max(1, |1 - beta |k|^2|).",
        "norms multiply: delta-norm and the norm of a diagonal",
        "checked",
        Check("float64", "K=1..5, 120 draws", check_transition_bound),
        None,
        transition_bound,
        (
            Mutant("any beta", lambda k, alpha, beta: alpha.max()),
            Mutant("mean instead of max", lambda k, alpha, beta: transition_bound(k, alpha.mean()[None], beta)),
            Mutant("keys of any norm", lambda k, alpha, beta: transition_bound(k / k.norm(), alpha, beta)),
            Mutant("decay left out", lambda k, alpha, beta: transition_bound(k, alpha * 0 + 1, beta)),
        ),
    ),
    polynomial(
        "kda-transition-key",
        "T k = (1 - beta |k|^2)(alpha . k): the key is no eigenvector once channels decay differently.",
        KIMI,
        shapes="k:K alpha:K=decay beta=gate",
        claim=claim_key_image,
        subject=key_image,
        ring=[{"K": 2}, {"K": 3}],
        mutants=[
            Mutant("an eigenvector", lambda k, alpha, beta: k * (1 - k @ k * beta) * (k @ (alpha * k))),
            Mutant("the formula for unit keys", lambda k, alpha, beta: alpha * k * (1 - beta)),
            Mutant("no decay", lambda k, alpha, beta: k * (1 - k @ k * beta)),
        ],
    ),
    polynomial(
        "kda-spectrum",
        "Diag(alpha)(I - beta k k^T) is similar to a symmetric matrix: its eigenvalues are real.",
        GRAZZI,
        shapes="k:K root:K beta=gate",
        claim=claim_similar,
        subject=symmetric_form,
        ring=[{"K": 2}, {"K": 3}],
        mutants=[
            Mutant("alpha on both sides", lambda k, root, beta: symmetric_form(k, root * root, beta)),
            Mutant("T itself", lambda k, root, beta: affine.transition(k, root * root, beta)),
            Mutant("the sign of beta", lambda k, root, beta: symmetric_form(k, root, -beta)),
        ],
    ),
    Equation(
        "kda-negative-eigenvalue",
        "One eigenvalue is negative exactly if beta |k|^2 > 1; the others are not.",
        GRAZZI,
        "checked",
        Check("float64", "K=1..5, 80 draws", check_negative_eigenvalues),
        None,
        negative_eigenvalues,
        (
            Mutant("for any norm: beta > 1", lambda k, alpha, beta: int(beta > 1)),
            Mutant("never", lambda k, alpha, beta: 0),
            Mutant(
                "when (1 - beta) k . alpha k is negative",
                lambda k, alpha, beta: int((1 - beta) * (k @ (alpha * k)) < 0),
            ),
            Mutant("from 2 on", lambda k, alpha, beta: int(beta * k.square().sum() > 2)),
        ),
    ),
    polynomial(
        "kda-determinant",
        "det T = (product of alpha)(1 - beta |k|^2): an exact overwrite cannot be undone.",
        "matrix determinant lemma",
        shapes="k:K alpha:K=decay beta=gate",
        claim=claim_determinant,
        subject=determinant,
        ring=[{"K": 3}],
        mutants=[
            Mutant("the formula for unit keys", lambda k, alpha, beta: determinant(k, alpha, beta * 0) * (1 - beta)),
            Mutant("without the decays", lambda k, alpha, beta: determinant(k, alpha * 0 + 1, beta)),
            Mutant("the sign", lambda k, alpha, beta: determinant(k, alpha, -beta)),
        ],
    ),
]
