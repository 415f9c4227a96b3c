"""The symbol table: one name for each thing, and what others call it.

The state is [V, K] and transitions multiply from the right, as in vLLM and FlashKDA. The default of
flash-linear-attention is the transpose, [K, V].
"""

from typing import NamedTuple

from kda_lab.pages.table import Table


class Symbol(NamedTuple):
    """A symbol of the book, with its name in public code and papers ("" where there is none).

    >>> Symbol("beta", r"\\beta_t", "scalar", "write gate").shape
    'scalar'
    """

    name: str
    latex: str
    shape: str
    meaning: str
    fla: str = ""
    kimi: str = ""
    vllm: str = ""
    deltanet: str = ""


SIZES = [
    Symbol("T", "T", "", "tokens of a sequence", "T", "T", "num_tokens", "L"),
    Symbol("C", "C", "", "tokens of a chunk, 64 in the kernels", "BT", "C", "chunk_size", "C"),
    Symbol("K", "K", "", "size of a key or query", "K", "d_k", "head_k_dim", "d"),
    Symbol("V", "V", "", "size of a value", "V", "d_v", "head_v_dim", "d"),
    Symbol("B", "B", "", "sequences of a batch", "B", "", "batch_size", ""),
    Symbol("H", "H", "", "key heads", "H", "", "num_k_heads", ""),
    Symbol("HV", "H_V", "", "value heads, a multiple of H", "HV", "", "num_v_heads", ""),
    Symbol("N", "N", "", "sequences packed with cu_seqlens", "N", "", "num_seqs", ""),
]
TOKEN = [
    Symbol("q", "q_t", "[K]", "query, already scaled", "q", "q_t", "q", "q_t"),
    Symbol("k", "k_t", "[K]", "key, of unit length in the delta rules", "k", "k_t", "k", "k_t"),
    Symbol("v", "v_t", "[V]", "value", "v", "v_t", "v", "v_t"),
    Symbol("alpha", r"\alpha_t", "[K] or scalar", "decay, in (0, 1]", "exp(g)", r"\alpha_t", "", ""),
    Symbol("g", "g_t", "[K] or scalar", "log decay: the natural logarithm of alpha, at most 0", "g", "", "g", ""),
    Symbol("beta", r"\beta_t", "scalar", "write gate, in (0, 1) or (0, 2)", "beta", r"\beta_t", "beta", r"\beta_t"),
    Symbol(
        "S",
        "S_t",
        "[V, K]",
        "state after token t",
        "S, h (transposed)",
        "S_t (transposed)",
        "recurrent_state, ssm_state",
        "S_t",
    ),
    Symbol("r", "r_t", "[V]", "residual: write gate times what is missing", "", "", "", ""),
    Symbol("o", "o_t", "[V]", "output: what the query reads", "o", "o_t", "core_attn_out", "o_t"),
    Symbol("phi(x)", r"\phi(x)", "[K]", "feature map, where a rule has one", "feature_map"),
    Symbol("Z", "Z_t", "[K]", "normaliser of linear attention: the sum of the keys", "z"),
    Symbol("gamma", r"\gamma", "scalar", "RetNet's fixed decay", "", "", "", ""),
    Symbol("dt", r"\Delta_t", "scalar", "step size of Mamba-2", "dt", "", "dt", ""),
    Symbol("S * alpha", r"\bar S_t", "[V, K]", "the state after its decay, before the write"),
    Symbol("T_t", "T_t", "[K, K]", "transition of one token", "", r"(I-\beta k k^T)Diag(\alpha)", "", r"I-\beta k k^T"),
    Symbol("H_t", "H_t", "[V, K]", "what one token writes into an empty state", "", "", "", ""),
]
CHUNK = [
    Symbol(
        "G",
        "G_i",
        "[C, K]",
        "sum of the log decays of tokens 1..i",
        "g (after cumsum)",
        r"\gamma (its exponential)",
        "g_cumsum",
        "",
    ),
    Symbol(
        "decay_between", "D", "[C, C]", "lower: decay from token j to token i, with one decay a head", "", "", "", ""
    ),
    Symbol(
        "decayed_scores",
        r"\Gamma(X, Y)",
        "[C, C]",
        "lower: scores of rows x_i and y_j, decayed over tokens j+1..i in each channel",
    ),
    Symbol(
        "A",
        "A",
        "[C, C]",
        "strictly lower: how token j's write disturbs token i's read, times beta_i",
        "Akk",
        "A_{kk}",
        "A",
        r"tril(\beta K K^T,-1)",
    ),
    Symbol("R", "R", "[C, C]", "inverse of I + A", "A (after solve_tril)", "M", "Ai", "T"),
    Symbol("U", "U", "[C, V]", "residuals of the chunk if its incoming state were zero", "u", "U", "u", "U"),
    Symbol("W", "W", "[C, K]", "how those residuals answer to the incoming state", "w", "W", "w", "W"),
    Symbol("E", "E", "[C, V]", "the residuals, one a row", "v_new", "", "v_new", "U - W S"),
    Symbol(
        "M", "M", "[C, C]", "lower: how token i's query reads token j's write", "Aqk", "A_{qk}", "Aqk", "tril(Q K^T)"
    ),
    Symbol("K_in", r"K_{in}", "[C, K]", "keys as the incoming state sees them", "", r"\Gamma \odot K", "", "K"),
    Symbol("Q_in", r"Q_{in}", "[C, K]", "queries as the incoming state sees them", "qg", r"\Gamma \odot Q", "qg", "Q"),
    Symbol(
        "K_g", "K_g", "[C, K]", "keys as the outgoing state keeps them", "kg", r"\Gamma^{i \to C} \odot K", "kg", "K"
    ),
    Symbol("D", "D_C", "[K] or scalar", "decay over the whole chunk", "exp(g_last)", r"\gamma^C", "", ""),
    Symbol("B", r"B", "[C, C]", "the write gates on a diagonal", "beta", r"Diag(\beta)", "beta", r"diag(\beta)"),
]


def meanings(symbols):
    """What each symbol is: its name in code, its shape, its meaning.

    >>> meanings(TOKEN[:1]).rows
    [['$q_t$', '`q`', '[K]', 'query, already scaled']]
    """
    head, shaped = ["symbol", "in code", "shape", "meaning"], any(s.shape for s in symbols)
    rows = [[f"${s.latex}$", f"`{s.name}`", s.shape, s.meaning] for s in symbols]
    return Table(head, rows) if shaped else Table(head[:2] + head[3:], [r[:2] + r[3:] for r in rows])


def elsewhere(symbols):
    """What others call it: flash-linear-attention, the Kimi Linear paper, vLLM, the DeltaNet papers.

    >>> elsewhere(TOKEN[:1]).rows
    [['$q_t$', '`q`', '$q_t$', '`q`', '$q_t$']]
    """
    named = [s for s in symbols if s.fla or s.kimi or s.vllm or s.deltanet]
    rows = [[f"${s.latex}$", _code(s.fla), _maths(s.kimi), _code(s.vllm), _maths(s.deltanet)] for s in named]
    return Table(["here", "FLA", "Kimi Linear", "vLLM", "DeltaNet"], rows)


def _code(text):
    """Names of code set as code; a remark in parentheses stays plain."""
    name, _, remark = text.partition(" (")
    return ", ".join(f"`{n}`" for n in name.split(", ") if n) + (f" ({remark}" if remark else "")


def _maths(text):
    name, _, remark = text.partition(" (")
    return (f"${name}$" if name else "") + (f" ({remark}" if remark else "")
