"""What surrounds the memory: feature map, norms, and the short convolution. torch tensors, float types as given."""

import torch


def elu_plus_one(x):
    """phi(x) = x + 1 above zero and e^x below: positive, and still positive in floats.

    Computed as elu(x) + 1 it rounds to exactly 0 for x below -17.3 in fp32.   Implements elu-plus-one.

    >>> elu_plus_one(torch.tensor([1.0, 0.0, -30.0])) > 0
    tensor([True, True, True])
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def l2_normalise(x, eps=1e-6):
    """x * rsqrt(sum x^2 + eps) over the last axis: length just below 1, and a zero vector stays zero.

    Implements l2-norm.

    >>> l2_normalise(torch.tensor([0.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def rms_norm(x, eps=1e-6):
    """x / sqrt(mean x^2 + eps) over the last axis, one head at a time.   Implements norm-attention.

    >>> rms_norm(torch.tensor([3.0, 4.0]), eps=0.0).square().mean().item()
    1.0
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def short_convolution(x, weight, state=None):
    """Causal depthwise convolution over tokens, then SiLU; carries the last w - 1 inputs as they came in.

    x: [..., T, D]   weight: [D, w], the last tap meets the current token   state: [..., w - 1, D] inputs before x, or
    None for zeros.   Returns (y [..., T, D], state [..., w - 1, D]).   Implements short-convolution.

    >>> x, weight = torch.randn(6, 2, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    >>> whole, _ = short_convolution(x, weight)
    >>> first, carried = short_convolution(x[:1], weight)
    >>> torch.allclose(short_convolution(x[1:], weight, carried)[0], whole[1:])
    True
    """
    w, T = weight.shape[-1], x.shape[-2]
    if state is None:
        state = x.new_zeros(*x.shape[:-2], w - 1, x.shape[-1])
    window = torch.cat([state, x], dim=-2)  # [..., w - 1 + T, D]
    y = sum(window[..., a : a + T, :] * weight[:, a] for a in range(w))
    return torch.nn.functional.silu(y), window[..., T:, :]
