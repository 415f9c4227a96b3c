"""The state as weights that learn while they read: losses, their gradients, and steps that lower them.

One token is one training pair: the key k is the input, the value v the target, and S k the prediction. A rule is then
a loss, the point where its gradient is taken, and a rate. Plain array algebra and ``/``, so that the same call runs on
torch, on SymPy expressions (calculus) and in a finite field.

Shapes: S [V, K]; k [K]; v [V]; rates and penalties are scalars or one number for each key channel, [K].
"""

from kda_lab.rules import outer


def dual_read(S, K, writes, q):
    """What q reads after T rank-one writes, without forming the new weights: S_0 q + sum_t (k_t . q) writes_t.

    S: [V, K] weights before   K: [T, K]   writes: [T, V]   q: [K]   returns [V].
    Implements dual-form (Irie et al. 2022).

    >>> import numpy as np
    >>> dual_read(np.array([[1, 0]]), np.array([[1, 0], [1, 1]]), np.array([[4], [1]]), np.array([1, 2]))
    array([8])
    """
    return S @ q + writes.T @ (K @ q)


def inner_product_loss(S, k, v):
    """-(v . S k): low when the prediction points along the target, and lower still the longer it is.

    >>> import numpy as np
    >>> int(inner_product_loss(np.array([[1, 2]]), np.array([3, 4]), np.array([5])))
    -55
    """
    return -(v @ (S @ k))


def inner_product_gradient(S, k, v):
    """-v k^T: the same wherever S stands.   returns [V, K].   Implements inner-product-gradient.

    >>> import numpy as np
    >>> inner_product_gradient(np.array([[1, 2]]), np.array([3, 4]), np.array([5]))
    array([[-15, -20]])
    """
    return outer(v, k) * -1


def reconstruction_loss(S, k, v):
    """``|S k - v|^2 / 2``: zero exactly when the prediction is the target.

    >>> import numpy as np
    >>> float(reconstruction_loss(np.array([[4, 2]]), np.array([1, 1]), np.array([2])))
    8.0
    """
    error = S @ k - v  # [V]
    return error @ error / 2


def reconstruction_gradient(S, k, v):
    """(S k - v) k^T: what is wrong, along the key.   returns [V, K].   Implements reconstruction-gradient.

    >>> import numpy as np
    >>> reconstruction_gradient(np.array([[4, 2]]), np.array([1, 1]), np.array([2]))
    array([[4, 4]])
    """
    return outer(S @ k - v, k)


def chain(slope, k):
    """The gradient of any loss of the prediction S k, from its slope there: slope k^T, of rank one.

    slope: [V], the derivative by the prediction   k: [K]   returns [V, K].   Implements prediction-chain-rule.

    >>> import numpy as np
    >>> chain(np.array([3]), np.array([1, 2]))
    array([[3, 6]])
    """
    return outer(slope, k)


def step(S, gradient, rate):
    """One step of gradient descent.   gradient: [V, K]   rate: scalar.

    >>> import numpy as np
    >>> step(np.array([[4.0, 2.0]]), np.array([[4, 4]]), 0.5)
    array([[2., 0.]])
    """
    return S - gradient * rate


def loss_factor(k, rate):
    """What one step with this rate leaves of the reconstruction loss: ``(1 - rate |k|^2)^2``.   Implements
    loss-after-write.

    >>> import numpy as np
    >>> [int(loss_factor(np.array([1, 1]), rate)) for rate in (0, 1, 2)]
    [1, 1, 9]
    """
    left = 1 - k @ k * rate
    return left * left


def curvature(S, k, Y):
    """How the reconstruction loss bends from S along Y: ``|Y k|^2``, which reaches ``|k|^2 |Y|^2`` along the key.

    Y: [V, K] direction   returns a scalar; it does not depend on S.   Implements loss-curvature.

    >>> import numpy as np
    >>> int(curvature(None, np.array([1, 2]), np.array([[1, 2]])))
    25
    """
    along = Y @ k  # [V]
    return along @ along


def coupled_step(S, k, v, beta, lam):
    """One gradient step on loss plus penalty, both taken at S: (1 - beta lambda) S - beta (S k - v) k^T.

    beta: scalar   lam: scalar or [K].   Implements coupled-decay.

    >>> import numpy as np
    >>> coupled_step(np.array([[4.0, 2.0]]), np.array([1, 1]), np.array([2]), 0.5, 1)  # the key then reads -1, not 2
    array([[ 0., -1.]])
    """
    return step(S, reconstruction_gradient(S, k, v) + S * lam, beta)


def decoupled_step(S, k, v, alpha, beta):
    """Decay first, then one gradient step at the decayed point.   alpha: scalar or [K]   beta: scalar.

    Implements kda-gradient-step, decoupled-decay.

    >>> import numpy as np
    >>> decoupled_step(np.array([[4.0, 2.0]]), np.array([1, 1]), np.array([2]), 0.5, 0.5)  # the key reads 2
    array([[1.5, 0.5]])
    """
    decayed = S * alpha  # [V, K]
    return step(decayed, reconstruction_gradient(decayed, k, v), beta)


def proximal_decay(lam):
    """The decay 1 / (1 + lambda) that balances staying near against being small.   lam: scalar or [K]; same shape back.

    It lies in (0, 1] for every lambda >= 0.   Implements proximal-decay.

    >>> import numpy as np
    >>> proximal_decay(np.array([0, 1, 3])).tolist()
    [1.0, 0.5, 0.25]
    """
    return 1 / (1 + lam)


def implicit_gate(k, eta):
    """The write gate of an implicit step of rate eta: ``eta / (1 + eta |k|^2)``.   k: [K]   eta: scalar > 0.

    ``beta |k|^2`` stays below one, whatever eta and the length of the key.   Implements implicit-write.

    >>> import numpy as np
    >>> implicit_gate(np.array([1, 1]), 0.5), implicit_gate(np.array([3, 4]), 1.0) < 1 / 25
    (np.float64(0.25), np.True_)
    """
    return eta / (1 + k @ k * eta)


def implicit_step(S, k, v, eta):
    """The matrix nearest to S once eta times the loss of the *new* state is added to the squared distance.

    eta: scalar > 0   returns [V, K].   Implements implicit-write.

    >>> import numpy as np
    >>> implicit_step(np.array([[4.0, 2.0]]), np.array([1, 1]), np.array([2]), 0.5)
    array([[3., 1.]])
    """
    return step(S, reconstruction_gradient(S, k, v), implicit_gate(k, eta))


def joint_step(S, k, v, lam, eta):
    """Distance, penalty and loss minimised together: it reads as KDA does, but writes along alpha . k.

    lam: scalar or [K]   eta: scalar > 0   returns [V, K].   Implements joint-step.

    >>> import numpy as np
    >>> joint_step(np.array([[4.0, 2.0]]), np.array([1, 1]), np.array([2]), 1, 0.5).round(3)
    array([[1.833, 0.833]])
    """
    alpha = proximal_decay(k * 0 + lam)  # [K]
    short = alpha * k  # [K] the key, shortened where the penalty is strong
    decayed = S * alpha
    beta = eta / (1 + k @ short * eta)
    return decayed + outer(v - decayed @ k, short) * beta
