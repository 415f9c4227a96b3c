"""Keys: zero, small, equal, nearly equal, opposite; and the L2 norm."""

import warnings

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import Wrong, case
from kda_lab.conformance.judge import tolerance

# an inverse by doubling within 16 tokens has terms of up to C(14, 7) = 3432, whose float32 roundings stay: less exact,
# no fault. Within 64 tokens they reach 5e17
DOUBLING = 3432 * 2.0**-24


def with_keys(bench, T, jitter, beta, gates="weak", length=1.0, slow=1.0):
    """Arguments whose keys are one direction a head plus a share of jitter, of this length, with this write gate."""
    bench.slack = DOUBLING
    named = bench.make(T, gates=gates)
    k = named["k"]
    one = torch.nn.functional.normalize(bench.normal(1, 1, *k.shape[2:]), dim=-1)
    noise = torch.nn.functional.normalize(bench.normal(*k.shape), dim=-1)
    k = torch.nn.functional.normalize(one + jitter * noise, dim=-1) * length
    named |= bench.place({"k": k.to(bench.dtype)})
    named = bench.gated(named, lambda gate: torch.full_like(gate, beta))
    if "g" in named:
        named["g"] = named["g"] * slow
    return named


def classify(bench, named, got):
    """What nearly parallel keys do to the digits: "exact", "degraded", or Wrong for "broken".

    exact: as float32 products would have it   degraded: as operands of the rung's precision would   broken: more than
    that.
    """
    wanted = bench.wanted(named)
    errors = [tolerance.row_errors(got[0].detach().cpu(), wanted[0].cpu()).size]
    budgets = [bench.budget(named, 0, rung="float32")]
    if got[1] is not None:
        errors.append(tolerance.channel_errors(got[1].detach().cpu(), wanted[1].cpu()).size)
        budgets.append(bench.budget(named, 1, rung="float32"))
    return "exact" if all(e <= b for e, b in zip(errors, budgets)) else "degraded"


@case(
    "keys",
    input="T=C, one direction with 5 % jitter, decays near 1, beta=0.9997 and 1",
    clause=clauses.BETA,
    report="MoonshotAI/FlashKDA#34",
)
def nearly_parallel_keys(bench):
    """An inverse by a power series: its terms reach 1e17 on nearly parallel keys and cancel to nothing."""
    classes = set()
    bench.accuracy = "broken"
    for beta in (0.9997, 1.0):
        named = with_keys(bench, 2 * bench.chunk + 1, 0.05, beta, slow=0.1)
        got = bench.right(named, what=f"beta={beta}: ")
        classes.add(classify(bench, named, got))
    bench.accuracy = "degraded" if "degraded" in classes else "exact"


@case("keys", input="T=C, identical keys, beta=0.9997 and 1", clause=clauses.BETA, report="MoonshotAI/FlashKDA#34")
def identical_keys(bench):
    """An inverse that only survives exact cancellation: right at beta=1, lost just below it."""
    for beta in (0.9997, 1.0, 0.5):
        bench.right(with_keys(bench, bench.chunk + 5, 0.0, beta, slow=0.1), what=f"beta={beta}: ")


@case(
    "keys",
    input="T=20, correlated keys of length 0.9, beta=1, log decays -0.03 to -0.01",
    clause=clauses.BETA,
    report="NVIDIA/cudnn-frontend#1051",
)
def correlated_keys_shorter_than_one(bench):
    """An inverse that diverges on correlated keys although every step contracts."""
    named = with_keys(bench, 70, 0.3, 1.0, length=0.9)
    if "g" in named:
        named["g"] = named["g"].clamp(-0.03, -0.01)
    bench.right(named)


@case("keys", input="T=2C, one direction with 5 % jitter, beta=2", clause=clauses.BETA, needs="beta-to-two")
def nearly_parallel_keys_reflect(bench):
    """An inverse whose entries are bounded for beta up to 1 only."""
    bench.right(with_keys(bench, bench.chunk + 9, 0.05, 2.0, slow=0.1))


@case("keys", input="keys k, -k, k, -k, ...", clause=clauses.BETA)
def opposite_keys(bench):
    """Absolute values or squares of products of keys: the sign of k_i k_j is lost."""
    named = with_keys(bench, 40, 0.0, 0.7)
    named["k"][:, 1::2] *= -1
    bench.right(named)


@case(
    "keys",
    input="k=0 everywhere: S decays, and o reads S0",
    clause=clauses.NORM,
    report="fla-org/flash-linear-attention#736",
)
def zero_keys_only_decay(bench):
    """A division by the length of a key, with and without normalisation inside."""
    named = bench.make(40)
    named["k"].zero_()
    bench.right(named, what="plain keys: ")
    named = bench.make(40)
    named["k"][:, ::3] = 0
    named["q"][:, ::4] = 0
    if bench.can.can("l2norm"):
        o, _S = bench.right(named | {"use_qk_l2norm_in_kernel": True}, what="normalised inside: ")
        if not o.isfinite().all():
            raise Wrong("zero keys and queries give values that are not finite")


@case(
    "keys",
    input="random q and k of lengths 0.5 to 8, normalised inside",
    clause=clauses.NORM,
    report=("fla-org/flash-linear-attention#537", "fla-org/flash-linear-attention#736"),
    needs="l2norm",
)
def keys_are_normalised_inside(bench):
    """A norm that is missing, applied to k and not to q, or taken over all heads."""
    named = bench.make(70)
    for name in ("q", "k"):
        lengths = bench.place({"x": torch.exp(bench.normal(*named[name].shape[:3], 1))})["x"]
        named[name] = (named[name] * lengths).to(bench.dtype)
    bench.right(named | {"use_qk_l2norm_in_kernel": True})


@case(
    "keys",
    input="q and k of length 1e-3, normalised inside: sum x^2 + 1e-6 halves the square",
    clause=clauses.NORM,
    needs="l2norm",
)
def short_keys_meet_the_epsilon(bench):
    """The epsilon outside of the root, another epsilon, or max(norm, eps): no difference on keys of length 1."""
    named = bench.make(40)
    for name in ("q", "k"):
        named[name] = (named[name] * 1e-3).to(bench.dtype)
    bench.right(named | {"use_qk_l2norm_in_kernel": True})


@case("keys", input="keys of lengths 0.1 to 1, not normalised", clause=clauses.RULE, needs="plain-keys")
def keys_of_other_lengths_are_taken_as_they_are(bench):
    """A normalisation that nobody asked for."""
    named = bench.make(70)
    for name in ("q", "k"):
        lengths = bench.place(
            {"x": torch.rand(named[name].shape[:3], generator=bench.generator, dtype=torch.float64)[..., None]}
        )["x"]
        named[name] = (named[name] * (0.1 + 0.9 * lengths)).to(bench.dtype)
    bench.right(named)


@case(
    "keys",
    input="random keys of length sqrt(K), beta=1, T=C: every step multiplies the state by 1 - beta |k|^2",
    clause="keys that are not normalised are out of contract, and an error or a warning says so",
    report=("fla-org/flash-linear-attention#537", "fla-org/flash-linear-attention#736"),
    needs="norm-checks plain-keys",
    refusal="may",
)
def keys_that_expand_the_state_are_named(bench):
    """Keys that were never normalised: the state overflows after a few dozen tokens, and nobody says why."""
    named = bench.make(bench.chunk)
    named["k"] = (named["k"] * named["k"].shape[-1] ** 0.5).contiguous()
    named = bench.gated(named, torch.ones_like)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bench.call(named, quiet=False)
    if not said:
        raise Wrong("keys with beta |k|^2 far above 2 were taken without an error or a warning")


@case("keys", input="orthogonal unit keys, beta=1: every value is read back exactly", clause=clauses.RULE)
def what_was_written_is_read_back(bench):
    """Values that are mixed up among keys."""
    named = bench.make(12)
    K = named["k"].shape[-1]
    eye = torch.eye(K, dtype=torch.float64)[torch.arange(12) % K]
    k = eye[None, :, None, :].expand(named["k"].shape)
    named |= bench.place({"k": k.to(bench.dtype).contiguous(), "q": k.to(bench.dtype).contiguous()})
    bench.right(bench.gated(named, torch.ones_like))
