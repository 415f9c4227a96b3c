"""One call in two vocabularies: of `kda_lab.ops`, which is flash-linear-attention's, and of `kda_lab.cuda`.

`WORDS` is the mapping, and both directions read it. The gate is the one thing that is not a renaming: public calls say
whether the gate is raw and which floor it has, kernels what to compute.
"""

from kda_lab.cuda.operands import GATES, ChunkCall

# of a kernel -> public; what is not here has one name
WORDS = {"l2norm": "use_qk_l2norm_in_kernel", "beta_sigmoid": "use_beta_sigmoid_in_kernel"}
SAME = ("scale", "initial_state", "output_final_state", "cu_seqlens", "A_log", "dt_bias", "lower_bound")


def in_kernel_words(rule, call):
    """A checked call of a rule as a ``ChunkCall``.

    >>> import torch
    >>> from kda_lab.ops.contract import Call
    >>> from kda_lab.rules import RULES
    >>> x = torch.zeros(1, 1, 1, 1)
    >>> in_kernel_words(RULES["kda"], Call(x, x, x, x, use_gate_in_kernel=True, A_log=x[0, 0, 0])).gate
    'softplus'
    """
    gate = "none"
    if rule.decay:
        raw = "softplus" if call.lower_bound is None else "bounded"
        gate = raw if call.use_gate_in_kernel else "given"
    options = {name: getattr(call, WORDS.get(name, name)) for name in (*SAME, *WORDS)}
    return ChunkCall(
        call.q, call.k, call.v, call.g, call.gates.get("beta"), gate=gate, erase=bool(rule.gates), **options
    )


def in_public_words(arguments):
    """The same call by the names of ``ops.chunk_kda``, from the arguments of a chunk kernel by name: a dict.

    ValueError for what ``chunk_kda`` does not do: no gate, nothing erased, exact products.

    >>> in_public_words({"q": 1, "gate": "bounded", "lower_bound": -5.0, "l2norm": True})
    {'q': 1, 'use_gate_in_kernel': True, 'lower_bound': -5.0, 'use_qk_l2norm_in_kernel': True}
    """
    gate = arguments.get("gate", "given")
    if gate not in GATES or gate == "none" or not arguments.get("erase", True) or arguments.get("exact"):
        shown = ", ".join(f"{name}={arguments[name]!r}" for name in ("gate", "erase", "exact") if name in arguments)
        raise ValueError(
            f"chunk_kda has a gate, erases, and leaves products to its kernel, got {shown}; call the kernel"
        )
    left_out = {"erase", "exact"}
    named = {WORDS.get(name, name): x for name, x in arguments.items() if name not in left_out}
    return {
        ("use_gate_in_kernel" if n == "gate" else n): (gate != "given" if n == "gate" else x) for n, x in named.items()
    }
