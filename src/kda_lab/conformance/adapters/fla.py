"""flash-linear-attention (checked against the signatures of 0.6.0), which stores states K first.

Run with ``--impl kda_lab.conformance.adapters.fla:chunk_kda --device cuda --caps sizes=128x128``: Triton tunes for
minutes for each head size and number of heads. ``untuned_chunk_kda`` and ``untuned_recurrent_kda`` run each kernel in
one fixed configuration instead. The recurrence is the same; tile sizes and the number of warps are not, and with them
the order of summation and the last
digits: the verdicts are those of that configuration. Needs the packages ``flash-linear-attention`` and ``fla-core``.
"""

import functools
import importlib

from kda_lab.conformance.adapters import versions


# signatures as in the contract, written out: the suite reads from them what an implementation takes
def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    cu_seqlens=None,
    chunk_size=None,
):
    """``fla.ops.kda.chunk_kda``. A lower bound is only a bound with ``safe_gate``; its chunks have 32 or 64 tokens."""
    from fla.ops.kda import chunk_kda as function

    options = {"A_log": A_log, "dt_bias": flat(dt_bias)} if use_gate_in_kernel else {}
    if chunk_size is not None:
        options["chunk_size"] = chunk_size
    return function(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        safe_gate=lower_bound is not None,
        lower_bound=lower_bound,
        cu_seqlens=cu_seqlens,
        **options,
    )


def fused_recurrent_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    cu_seqlens=None,
):
    """``fla.ops.kda.fused_recurrent_kda``: the token loop in one kernel, forward only."""
    from fla.ops.kda import fused_recurrent_kda as function

    return function(
        q,
        k,
        v,
        g,
        beta,
        A_log=A_log,
        dt_bias=flat(dt_bias),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        lower_bound=lower_bound,
        cu_seqlens=cu_seqlens,
    )


@functools.cache
def without_tuning():
    """Let every kernel that Triton would tune in this process run in the middle one of its configurations."""
    from triton.runtime.autotuner import Autotuner

    made = Autotuner.__init__

    def make(self, *arguments, **options):
        made(self, *arguments, **options)
        self.configs = self.configs[len(self.configs) // 2 :][:1]

    Autotuner.__init__ = make


@functools.wraps(chunk_kda)
def untuned_chunk_kda(*arguments, **options):
    """``chunk_kda`` with one configuration a kernel."""
    without_tuning()
    return chunk_kda(*arguments, **options)


@functools.wraps(fused_recurrent_kda)
def untuned_recurrent_kda(*arguments, **options):
    """``fused_recurrent_kda`` with one configuration a kernel."""
    without_tuning()
    return fused_recurrent_kda(*arguments, **options)


def flat(dt_bias):
    """dt_bias as [HV K], value heads first, or None.

    >>> flat(None)
    """
    return None if dt_bias is None else dt_bias.flatten()


def libraries():
    """Versions of the packages and of Triton; loads them, too."""
    importlib.import_module("fla.ops.kda")
    module = importlib.import_module("fla")
    return versions("flash-linear-attention", "fla-core", "triton") | {
        "fla (module)": getattr(module, "__version__", "not known")
    }


def untuned_libraries():
    """The same without tuning, which must be off before the package is loaded: its kernels choose when they are
    defined.
    """
    without_tuning()
    return libraries()


# no check reads values on a GPU, and neither kernel promises that shapes that do not fit are errors: the chunk form
# asserts some
for function in (chunk_kda, fused_recurrent_kda, untuned_chunk_kda, untuned_recurrent_kda):
    function.state_layout = "kv"
    function.capabilities = "no-value-checks, no-shape-checks"
    function.libraries = untuned_libraries if function in (untuned_chunk_kda, untuned_recurrent_kda) else libraries
for function in (fused_recurrent_kda, untuned_recurrent_kda):
    function.capabilities += ", no-backward"
