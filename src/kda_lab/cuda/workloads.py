"""The work on which chunk kernels are compared: named shapes, and inputs as public measurements of KDA have them."""

import itertools
import re

import torch

from kda_lab.parts.inputs import jittered, rates

D = 128  # K and V
SHAPES = {
    "T=8192 H=96": dict(T=8192, H=96),
    "T=8192 H=64": dict(T=8192, H=64),
    "T=8192 H=32": dict(T=8192, H=32),
    "T=8192 H=8": dict(T=8192, H=8),
    "T=65536 H=8": dict(T=65536, H=8),
    "8x1024 H=96": dict(T=8192, H=96, lengths=[1024] * 8),
    "mixed H=96": dict(T=8192, H=96, lengths=[1300, 547, 2048, 963, 271, 3063]),
    "T=1024 H=32": dict(T=1024, H=32),
}


def shape(name):
    """Tokens T, heads H, and lengths of sequences if there are several, from a name in SHAPES or one of the same form.

    Raises ValueError for any other name.

    >>> shape("T=2048 H=12"), shape("3x16 H=2"), shape("5+0+7 H=1")["lengths"]
    ({'T': 2048, 'H': 12}, {'T': 48, 'H': 2, 'lengths': [16, 16, 16]}, [5, 0, 7])
    """
    if name in SHAPES:
        return SHAPES[name]
    found = re.fullmatch(r"(?:T=(?P<T>\d+)|(?P<n>\d+)x(?P<each>\d+)|(?P<parts>\d+(?:\+\d+)+)) H=(?P<H>[1-9]\d*)", name)
    lengths = [int(found["T"])] if found and found["T"] else None
    if found and not lengths:
        lengths = (
            [int(x) for x in found["parts"].split("+")] if found["parts"] else [int(found["each"])] * int(found["n"])
        )
    if not lengths or not sum(lengths):
        raise ValueError(
            f"a shape is one of {', '.join(SHAPES)}, or as T=2048 H=12, 4x1024 H=8 or 100+28 H=8; got {name!r}"
        )
    several = {} if found["T"] else {"lengths": lengths}
    return dict(T=sum(lengths), H=int(found["H"])) | several


def bytes_moved(T, H, lengths=None, D=D):
    """Bytes that a call must read and write once: q, k, v, g, o and beta in bf16, the fp32 state in and out.

    >>> bytes_moved(1, 1) == 1282 + 2 * 128 * 128 * 4
    True
    """
    sequences = len(lengths) if lengths else 1
    return T * H * 2 * (5 * D + 1) + 2 * sequences * H * D * D * 4


def inputs(generator, T, H, gates, lengths=None, D=D):
    """Arguments of `kda_chunk_forward` on the generator's device.

    In the form of the public measurements: bf16, raw bounded gates, norm and sigmoid in the kernel, state in, out.
    gates: strong (normal), long and weak (a log decay for each channel, log-uniform up to 1 and to 1e-2).

    >>> a = inputs(torch.Generator().manual_seed(0), 5, 2, "long", lengths=[3, 2], D=4)
    >>> a["g"].dtype, a["initial_state"].shape, a["cu_seqlens"].tolist()
    (torch.bfloat16, torch.Size([2, 2, 4, 4]), [0, 3, 5])
    """
    options = dict(device=generator.device, dtype=torch.float32, generator=generator)
    q, k, v, g = (torch.randn(1, T, H, D, **options).bfloat16() for _ in range(4))
    A_log, dt_bias = torch.rand(H, **options), torch.rand(H, D, **options)
    if gates != "strong":
        decay = -jittered(rates(gates, torch.rand(H, D, **options)), g.float())
        g = torch.logit(decay.clamp(1e-6, 4.9) / 5).bfloat16()
        A_log, dt_bias = 0 * A_log, 0 * dt_bias
    N = len(lengths) if lengths else 1
    ends = [0, *itertools.accumulate(lengths or [])]
    bounds = torch.tensor(ends, dtype=torch.int64, device=generator.device) if lengths else None
    return dict(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=torch.randn(1, T, H, **options).bfloat16(),
        initial_state=torch.randn(N, H, D, D, **options),
        cu_seqlens=bounds,
        gate="bounded",
        lower_bound=-5.0,
        A_log=A_log,
        dt_bias=dt_bias,
        l2norm=True,
        beta_sigmoid=True,
        output_final_state=True,
    )
