"""The backward pass by hand: the gradients that autograd finds through the token loop, from the states at chunk entries
alone.
"""

import pytest
import torch

from kda_lab import chunk, chunk_backward, decay, inputs, ops
from kda_lab.ops import chunked, gradient
from kda_lab.ops.prepare import Problem
from tests.leaves import RULES, leaves

SENTENCE = "the chunk form has a first derivative only"


def weighed(y, seed=3):
    weights = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (y * weights).sum()


def gradients(form, rule, named, **options):
    """Gradients of a loss with normal weights on every output and state entry."""
    o, S = getattr(ops, f"{form}_{rule}")(**named, output_final_state=True, **options)
    return dict(zip(named, torch.autograd.grad(weighed(o) + weighed(S, 4), list(named.values()))))


def agree(got, wanted, tolerance=1e-10):
    for name in wanted:
        error = (got[name] - wanted[name]).abs().max() / wanted[name].abs().max().clamp(min=1)
        assert error <= tolerance, f"{name}: relative difference {error:.1e}"


@pytest.mark.parametrize("gates", inputs.GATES)
@pytest.mark.parametrize("rule", RULES)
def test_gradients_equal_those_of_the_token_loop(rule, gates):
    named = leaves(rule, 83, B=2, H=2, HV=4, gates=gates)
    agree(gradients("chunk", rule, named), gradients("naive", rule, named))


@pytest.mark.parametrize("rule", RULES)
def test_gradients_equal_those_of_the_token_loop_for_packed_sequences(rule):
    named = leaves(rule, 80, H=1, HV=2)
    cu = torch.tensor([0, 0, 37, 40, 77, 77])
    named["initial_state"] = torch.randn(
        5, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    agree(gradients("chunk", rule, named, cu_seqlens=cu, chunk_size=16), gradients("naive", rule, named, cu_seqlens=cu))


@pytest.mark.parametrize("lower_bound", [-5.0, None])
def test_gradients_equal_those_of_the_token_loop_through_norm_gate_and_logits(lower_bound):
    named = leaves("kda", 50, H=1, HV=2)
    named["g"] = torch.randn(
        1, 50, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).requires_grad_()
    named["A_log"] = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    named["dt_bias"] = torch.linspace(-1, 1, 8, dtype=torch.float64).requires_grad_()
    switches = dict.fromkeys(("use_gate_in_kernel", "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel"), True)
    options = {**switches, "lower_bound": lower_bound}
    agree(gradients("chunk", "kda", named, **options), gradients("naive", "kda", named, **options))


@pytest.mark.parametrize("C", [1, 5, 16, 23, 64])
def test_gradients_do_not_depend_on_the_chunk_size(C):
    named = leaves("kda", 70, gates="weak")
    agree(gradients("chunk", "kda", named, chunk_size=C), gradients("chunk", "kda", named, chunk_size=70))


@pytest.mark.parametrize("rule", RULES)
def test_gradients_pass_gradcheck(rule):
    named = leaves(rule, 4, HV=1, K=2, V=2)
    function = lambda *values: getattr(ops, f"chunk_{rule}")(
        **dict(zip(named, values)), output_final_state=True, chunk_size=3
    )
    assert torch.autograd.gradcheck(function, tuple(named.values()))


def test_gate_parameters_pass_gradcheck():
    named = leaves("kda", 3, HV=1, K=2, V=1)
    named["A_log"] = torch.tensor([0.2], dtype=torch.float64, requires_grad=True)
    named["dt_bias"] = torch.tensor([[0.1, -0.3]], dtype=torch.float64, requires_grad=True)
    options = {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True, "lower_bound": -5.0, "chunk_size": 2}
    function = lambda *values: ops.chunk_kda(**dict(zip(named, values)), output_final_state=True, **options)
    assert torch.autograd.gradcheck(function, tuple(named.values()))


def test_the_batched_adjoint_is_the_definition():
    x = inputs.head(20, 4, 3, torch.Generator().manual_seed(5), gates="strong")
    dO, dS = torch.randn(20, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    args = x.S, x.q, x.k, x.v, x.g.exp(), x.beta
    wanted = chunk_backward.kda(*args, chunk.kda(*args), dO, dS)
    batched = lambda y: y[None, :, None]
    beta = batched(x.beta)[..., None]
    problem = Problem(*map(batched, (x.q, x.k, x.v, x.g)), beta, beta, None, None)
    dQ, dK, dV, dg, derase, dwrite, dS = gradient.backward(problem, 20, x.S[None, None], batched(dO), dS[None, None])
    got = (dQ, dK, dV, dg, derase + dwrite, dS)
    for y, name in zip(got, ("dQ", "dK", "dV", "dg", "dbeta", "dS")):
        torch.testing.assert_close(y.squeeze(), getattr(wanted, name), rtol=1e-12, atol=1e-12)


def test_the_batched_adjoint_with_two_gates_is_the_definition():
    x = inputs.head(20, 4, 3, torch.Generator().manual_seed(5), gates="strong")
    draw = torch.Generator().manual_seed(6)
    erase, write = (torch.rand(20, n, generator=draw, dtype=torch.float64) for n in (4, 3))
    dO, dS = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((20, 3), (3, 4)))
    args = x.S, x.q, x.k, x.v, x.g.exp(), erase, write
    wanted = chunk_backward.gated_delta_2(*args, chunk.gated_delta_2(*args), dO, dS)
    batched = lambda y: y[None, :, None]
    problem = Problem(*map(batched, (x.q, x.k, x.v, x.g, erase, write)), None, None)
    got = gradient.backward(problem, 20, x.S[None, None], batched(dO), dS[None, None])
    for y, exact in zip(got, wanted):
        torch.testing.assert_close(y.squeeze(), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("T", "C", "chunks"), [(64, 16, 4), (128, 32, 4), (128, 16, 8)])
def test_what_is_kept_beside_the_inputs_grows_with_chunks_and_not_with_tokens(T, C, chunks):
    x = leaves("kda", T, H=2, HV=2)
    given = {y.data_ptr() for y in x.values()}
    saved = {}
    *first, beta, S = x.values()
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.setdefault(y.data_ptr(), y), lambda y: y):
        gradient.run(Problem(*first, beta[..., None], beta[..., None], S, None), C)
    assert [y.shape for at, y in saved.items() if at not in given] == [(chunks, 2, 3, 4)]


def test_no_exponent_of_the_backward_pass_is_positive(monkeypatch):
    named = leaves("kda", 70, gates="strong")
    largest, exp = [], torch.Tensor.exp
    monkeypatch.setattr(torch.Tensor, "exp", lambda x: largest.append(x.max().item()) or exp(x))
    o, _ = ops.chunk_kda(**named)
    forward = len(largest)
    o.sum().backward()
    assert len(largest) > forward
    assert max(largest) <= 0


@pytest.mark.parametrize("channels", [1, 3])
def test_the_adjoint_of_the_scores_is_that_of_autograd(channels):
    generator = torch.Generator().manual_seed(6)
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    X, Y, g = make(2, 37, 3).requires_grad_(), make(2, 37, 3).requires_grad_(), -make(2, 37, channels).abs()
    P = make(2, 37, 37).tril()
    wanted = torch.autograd.grad((P * decay.pairwise_scores(X, Y, g.expand(2, 37, 3))).sum(), (X, Y))
    for got, exact in zip(gradient.scores_backward(P, X.detach(), Y.detach(), g), wanted):
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("g", [-5.0, -60.0, -1e4, -torch.inf])
@pytest.mark.parametrize("rule", ["kda", "gated_delta_rule"])
def test_gradients_are_finite_and_right_under_strong_gates(rule, g, dtype):
    named = leaves(rule, 40, dtype=dtype)
    named["g"] = torch.full_like(named["g"], g).requires_grad_()
    got = gradients("chunk", rule, named)
    # fp32: some hundred roundings of 2^-24
    agree(got, gradients("naive", rule, named), 1e-10 if dtype == torch.float64 else 1e-5)
    assert g > -1e3 or not got["g"].any()


@pytest.mark.parametrize("rule", ["kda", "gated_delta_rule"])
def test_gradients_are_right_where_single_gates_clear(rule):
    named = leaves(rule, 70, gates="weak")
    g = named["g"].detach().clone()
    g[:, ::7, :1] = -torch.inf
    named["g"] = g.requires_grad_()
    got = gradients("chunk", rule, named)
    agree(got, gradients("naive", rule, named))
    assert not got["g"][:, ::7, :1].any()


def test_rows_that_belong_to_nobody_get_no_gradient_and_give_none():
    named = leaves("kda", 30)
    for name in ("q", "k", "v", "g", "beta"):
        y = named[name].detach().clone()
        y[:, 21:] = torch.nan
        named[name] = y.requires_grad_()
    got = gradients("chunk", "kda", named, cu_seqlens=torch.tensor([0, 21]), chunk_size=16)
    for name in ("q", "k", "v", "g", "beta"):
        assert got[name].isfinite().all()
        assert not got[name][:, 21:].any()


@pytest.mark.parametrize("rule", RULES)
def test_without_tokens_the_state_gets_what_came(rule):
    named = leaves(rule, 0, H=1, HV=2)
    got = gradients("chunk", rule, named)
    weights = torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert got["initial_state"].equal(weights)
    assert all(got[name].shape == named[name].shape for name in named)


def test_float32_gradients_stay_close_to_those_of_float64():
    named = leaves("kda", 256, K=16, V=8, gates="long", keys="collinear")
    exact = gradients("naive", "kda", named)
    single = {name: y.detach().float().requires_grad_() for name, y in named.items()}
    # 256 tokens of nearly one key, each a few hundred roundings of 2^-24
    agree({name: y.double() for name, y in gradients("chunk", "kda", single).items()}, exact, 1e-4)


def test_only_what_wants_a_gradient_gets_one():
    named = {name: y.detach() for name, y in leaves("kda", 20).items()}
    named["beta"].requires_grad_()
    o, _ = ops.chunk_kda(**named)
    weighed(o).backward()
    assert named["beta"].grad is not None
    assert all(y.grad is None for name, y in named.items() if name != "beta")


@pytest.mark.parametrize("part", [0, 1])
def test_a_loss_may_use_the_outputs_or_the_state_alone(part):
    named = leaves("kda", 40)
    loss = lambda form: weighed(getattr(ops, f"{form}_kda")(**named, output_final_state=True)[part])
    grad = lambda form: torch.autograd.grad(loss(form), list(named.values()), allow_unused=True, materialize_grads=True)
    agree(dict(zip(named, grad("chunk"))), dict(zip(named, grad("naive"))))


def test_a_second_derivative_is_refused_in_one_sentence():
    named = leaves("kda", 10)
    o, _ = ops.chunk_kda(**named)
    (dq,) = torch.autograd.grad(weighed(o), named["q"], create_graph=True)
    with pytest.raises(RuntimeError, match=SENTENCE):
        dq.sum().backward()


def test_the_second_derivative_in_the_initial_state_is_refused_too():
    named = {name: y.detach() for name, y in leaves("kda", 10).items()}
    S, k = named["initial_state"].requires_grad_(), named["k"].requires_grad_()
    o, _ = ops.chunk_kda(**named)
    (dk,) = torch.autograd.grad(weighed(o), k, create_graph=True)
    with pytest.raises(RuntimeError, match=SENTENCE):
        torch.autograd.grad(dk.sum(), S)


def test_a_first_derivative_with_a_graph_is_the_same_number():
    named = leaves("kda", 10)
    loss = lambda: weighed(ops.chunk_kda(**named)[0])
    (plain,), (graph,) = (
        torch.autograd.grad(loss(), named["q"]),
        torch.autograd.grad(loss(), named["q"], create_graph=True),
    )
    assert graph.equal(plain)


def test_function_transforms_find_the_same_gradient():
    named = leaves("kda", 10)
    wanted = torch.autograd.grad(weighed(ops.chunk_kda(**named)[0]), named["k"])[0]
    rest = {name: y.detach() for name, y in named.items() if name != "k"}
    got = torch.func.grad(lambda k: weighed(ops.chunk_kda(k=k, **rest)[0]))(named["k"].detach())
    torch.testing.assert_close(got, wanted)


def test_autocast_around_backward_changes_nothing():
    named = leaves("kda", 20, dtype=torch.float32)
    loss = lambda: ops.chunk_kda(**named)[0].sum()
    plain = torch.autograd.grad(loss(), named["k"])[0]
    o = loss()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.autograd.grad(o, named["k"])[0].equal(plain)


def test_the_backward_pass_writes_into_nothing_that_it_was_given():
    named = leaves("kda", 40)
    before = {name: y.detach().clone() for name, y in named.items()}
    o, S = ops.chunk_kda(**named, output_final_state=True)
    dO, dS = torch.ones(1, dtype=torch.float64).expand_as(o), torch.randn_like(S)
    given = dS.clone()
    torch.autograd.grad((o, S), list(named.values()), (dO, dS))
    assert dS.equal(given)
    assert all(y.equal(before[name]) for name, y in named.items())


def test_tokens_come_back_from_chunks_in_their_places():
    x = torch.arange(14.0).reshape(2, 7, 1, 1)
    _, _, rows = chunked.layout([0, 3, 14], 4, 14, "cpu")
    assert chunked.back_to_tokens(chunked.cut_into_chunks(x, rows), rows, (2, 7)).equal(x)
