"""Mistakes in the adjoints, each as a full wrong implementation."""

from functools import partial

from kda_lab.algebra import chunk_backward
from kda_lab.proof.registry import Mutant, wrong


def longer_rows(P, Y, alpha):
    """Mutant: the interval j..i instead of j+1..i."""
    return chunk_backward.decayed_rows(P, Y * alpha, alpha)


def longer_columns(P, X, alpha):
    """Mutant: the interval j..i instead of j+1..i."""
    return chunk_backward.decayed_columns(P, X, alpha) * alpha


_token = partial(wrong, chunk_backward.token)
TOKEN_MUTANTS = (
    _token(
        "the output's own part of dS is left out",
        ("dS = dS + outer(do, q)  # [V, K] of the state behind the token, its own output included\n", "dS = dS * 1\n"),
    ),
    _token("q reads the decayed state before the write", ("(S_bar + outer(e * beta, k)).T @ do", "S_bar.T @ do")),
    _token("dr without the key", ("dr = dS @ k", "dr = dS @ q")),
    _token("dk as it is written only", ("(dS.T @ e - S_bar.T @ dr)", "(dS.T @ e)")),
    _token("dk as it reads only", ("(dS.T @ e - S_bar.T @ dr)", "(-(S_bar.T @ dr))")),
    _token("dk reads the undecayed state", ("S_bar.T @ dr", "S.T @ dr")),
    _token("dk without beta", ("S_bar.T @ dr) * beta", "S_bar.T @ dr)")),
    _token("the erase does not pass back", ("dS_bar = dS - outer(dr * beta, k)", "dS_bar = dS")),
    _token(
        "the erase passes back without beta",
        ("outer(dr * beta, k)  # [V, K]\n    dg", "outer(dr, k)  # [V, K]\n    dg"),
    ),
    _token("dg is the gradient of alpha", ("sum(S_bar * dS_bar)", "sum(S * dS_bar)")),
    _token("dg from the state behind the token", ("sum(S_bar * dS_bar)", "sum((S_bar + outer(e * beta, k)) * dS)")),
    _token("the state's gradient does not decay", ("dS_bar * alpha)", "dS_bar)")),
    _token(
        "the state's gradient passes by T, not T^T",
        ("dS_bar * alpha)", "dS * alpha - outer((dS * alpha) @ k * beta, k))"),
    ),
    _token("dv without beta", ("dk, dr * beta, dg", "dk, dr, dg")),
    _token("dbeta from the value alone", ("dr @ e", "dr @ v")),
)

_loop = partial(wrong, chunk_backward.loop)
LOOP_MUTANTS = (
    _loop("reads the state behind the token", ("token(states[t],", "token(states[t + 1],")),
    _loop(
        "every token gets the last state's gradient",
        (
            "dbeta[t], dS = d.dq, d.dk, d.dv, d.dg, d.dbeta, d.dS",
            "dbeta[t], last = d.dq, d.dk, d.dv, d.dg, d.dbeta, d.dS",
        ),
    ),
    _loop("from the start", ("range(len(K) - 1, -1, -1)", "range(len(K))")),
    _loop("states without decay", ("        S = S * a\n", "")),
)

SCORE_MUTANTS = {
    "rows": (
        Mutant("starts at token j", longer_rows),
        Mutant("transposed", lambda P, Y, alpha: chunk_backward.decayed_columns(P, Y, alpha)),
        wrong(chunk_backward.decayed_rows, "strictly lower", ("for j in range(i + 1)", "for j in range(i)")),
        wrong(chunk_backward.decayed_rows, "no decay", ("[y * alpha[i] for y in decayed]", "decayed")),
    ),
    "columns": (
        Mutant("starts at token j", longer_columns),
        Mutant("transposed", lambda P, X, alpha: chunk_backward.decayed_rows(P, X, alpha)),
        wrong(chunk_backward.decayed_columns, "drops token i", ("x * alpha[j + 1] for x", "x * alpha[j] for x")),
        wrong(
            chunk_backward.decayed_columns,
            "strictly lower",
            ("for i in range(j, len(X))", "for i in range(j + 1, len(X))"),
        ),
    ),
}

_kda = partial(wrong, chunk_backward.kda)
_DE = "dE = terms.M.T @ dO + terms.K_g @ dS.T"
_Z = "Z = terms.R.T @ dE"
_DA = "dA = -tril(Z @ terms.E.T, -1)"
_DM = "dM = tril(dO @ terms.E.T)"
_S0 = "dS0 = dS * terms.D + dO.T @ terms.Q_in - dV.T @ terms.K_in"
_ROW = "K_row = dK_in * expG + reads * B"
_COL = "K_col = dK_g * late + decayed_columns(dA * B, K, alpha) + decayed_columns(dM, Q, alpha)"
_BETA = "dbeta = sum((Z * Y).T) + sum((reads * K).T)"
_G = "dG = Q * dQ + K * (K_row - K_col)"
_LAST = "    dG[-1] = dG[-1] + sum(terms.S * dS)\n"
CHUNK_MUTANTS = (
    _kda("dE without the outputs", (_DE, "dE = terms.K_g @ dS.T")),
    _kda("dE without the state", (_DE, "dE = terms.M.T @ dO")),
    _kda("dE with M for M^T", (_DE, _DE.replace("M.T", "M"))),
    _kda("dE with K_in for K_g", (_DE, _DE.replace("K_g", "K_in"))),
    _kda("Z with R for R^T", (_Z, "Z = terms.R @ dE")),
    _kda("Z is not solved", (_Z, "Z = dE * 1")),
    _kda("dM is not masked, above the diagonal", (_DM, "dM = dO @ terms.E.T")),
    _kda("dM is strictly lower", (_DM, "dM = tril(dO @ terms.E.T, -1)")),
    _kda("dM takes U for E", (_DM, "dM = tril(dO @ terms.U.T)")),
    _kda("dA has the other sign", (_DA, "dA = tril(Z @ terms.E.T, -1)")),
    _kda("dA keeps its diagonal", (_DA, "dA = -tril(Z @ terms.E.T)")),
    _kda("dA takes dE for Z", (_DA, _DA.replace("Z @", "dE @"))),
    _kda("dV without beta", ("dV = Z * B", "dV = Z * 1")),
    _kda("dV with beta twice", ("dV = Z * B", "dV = Z * B * B")),
    _kda("dQ_in from the new state", ("dQ_in = dO @ S", "dQ_in = dO @ terms.S")),
    _kda("dK_in has the other sign", ("dK_in = -(dV @ S)", "dK_in = dV @ S")),
    _kda("dK_in without beta", ("dK_in = -(dV @ S)", "dK_in = -(Z @ S)")),
    _kda("dK_g takes U for E", ("dK_g = terms.E @ dS", "dK_g = terms.U @ dS")),
    _kda("dS_0 does not decay", (_S0, _S0.replace("dS * terms.D", "dS"))),
    _kda("dS_0 without the outputs", (_S0, _S0.replace("+ dO.T @ terms.Q_in ", ""))),
    _kda("dS_0 without the residuals", (_S0, _S0.replace(" - dV.T @ terms.K_in", ""))),
    _kda("dS_0 without beta", (_S0, _S0.replace("dV.T", "Z.T"))),
    _kda("dQ ignores the decay of dQ_in", ("dQ = dQ_in * expG", "dQ = dQ_in * 1")),
    _kda("dQ decays over j..i", ("decayed_rows(dM, K, alpha)", "longer(dM, K, alpha)"), longer=longer_rows),
    _kda("K_row without A", (_ROW, "K_row = dK_in * expG")),
    _kda("K_row with beta_j for beta_i", (_ROW, "K_row = dK_in * expG + decayed_rows(dA * beta[None, :], K, alpha)")),
    _kda("K_row ignores the decay of dK_in", (_ROW, _ROW.replace("dK_in * expG", "dK_in"))),
    _kda("K_col without M", (_COL, _COL.replace(" + decayed_columns(dM, Q, alpha)", ""))),
    _kda("K_col without A", (_COL, _COL.replace(" + decayed_columns(dA * B, K, alpha)", ""))),
    _kda("K_col without beta", (_COL, _COL.replace("dA * B", "dA"))),
    _kda("K_col without the state", (_COL, _COL.replace("dK_g * late + ", ""))),
    _kda("K_col keeps the decay of token j", (_COL, _COL.replace("dK_g * late", "dK_g * late * alpha"))),
    _kda("dK with the sign of dG", ("dQ, K_row + K_col,", "dQ, K_row - K_col,")),
    _kda("dbeta without the path through A", (_BETA, "dbeta = sum((Z * Y).T)")),
    _kda("dbeta through A alone", (_BETA, "dbeta = sum((reads * K).T)")),
    _kda("dbeta ignores the old state", ("Y = V - terms.K_in @ S.T", "Y = V")),
    _kda("dG by the rule of gated linear attention, q dq - k dk", (_G, "dG = Q * dQ - K * (K_row + K_col)")),
    _kda("dG adds both parts of the key", (_G, "dG = Q * dQ + K * (K_row + K_col)")),
    _kda("dG without the queries", (_G, "dG = K * (K_row - K_col)")),
    _kda("dG without S_C . dS", (_LAST, "")),
    _kda("dG with the decayed old state for S_C", (_LAST, "    dG[-1] = dG[-1] + sum(S * terms.D * dS)\n")),
    _kda(
        "the sums of dG run from the start",
        ("sums_from_end(dG)", "sums_from_start(dG)"),
        sums_from_start=lambda dG: dG + sum(dG) - chunk_backward.sums_from_end(dG),
    ),
    _kda("the sums of dG leave out their own token", ("sums_from_end(dG)", "sums_from_end(dG) - dG")),
)

_linear = partial(wrong, chunk_backward.linear)
LINEAR_MUTANTS = (
    _linear("no mask", ("tril(dO @ V.T)", "dO @ V.T")),
    _linear("dQ ignores the old state", ("return dO @ S + dM @ K", "return dM @ K")),
    _linear("dK ignores the new state", ("dM.T @ Q + V @ dS", "dM.T @ Q")),
    _linear("dV with M for M^T", ("M.T @ dO + K @ dS.T", "M @ dO + K @ dS.T")),
    _linear("the state passes nothing to the outputs", ("dS + dO.T @ Q", "dS")),
)

_split = partial(wrong, chunk_backward.split)
SPLIT_MUTANTS = (
    _split(
        "every chunk starts from the first state",
        ("zip(entries[::-1], parts[::-1])", "zip([entries[0]] * len(parts), parts[::-1])"),
    ),
    _split(
        "the state's gradient stops at a chunk",
        (
            "dbeta[part], dS = d.dQ, d.dK, d.dV, d.dg, d.dbeta, d.dS",
            "dbeta[part], dS = d.dQ, d.dK, d.dV, d.dg, d.dbeta, d.dS * 0",
        ),
    ),
    _split("from the first chunk to the last", ("zip(entries[::-1], parts[::-1])", "zip(entries, parts)")),
    _split("the states in reverse", ("zip(entries[::-1], parts[::-1])", "zip(entries, parts[::-1])")),
)
