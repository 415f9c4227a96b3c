"""One token through the decode kernel's source, on a CPU, in the words of ops: the same as the token loop."""

import pytest
import torch

from kda_lab import inputs, ops, rules
from kda_lab.ops import contract, run

GATES = {"use_gate_in_kernel": True, "A_log": torch.tensor([0.3, -0.2, 0.1, 0.0]), "use_beta_sigmoid_in_kernel": True}


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("rule", [r for r in rules.RULES.values() if r.gates == ("beta",)], ids=lambda r: r.name)
def test_one_token_is_the_token_loop(rule, raw):
    generator = torch.Generator().manual_seed(0)
    x = inputs.batch(3, 1, 2, 32, 24, generator, "long", HV=4, dtype=torch.float32)
    options = {"initial_state": x.S, "output_final_state": True, "use_qk_l2norm_in_kernel": True, "scale": 0.3}
    data = {"q": x.q, "k": x.k * 3, "v": x.v, "beta": x.beta}
    if rule.decay:
        data["g"] = x.g if rule.decay == "channel" else x.g[..., 0]
    if raw:
        options |= GATES | {"lower_bound": -5.0, "dt_bias": torch.randn(4, 32, generator=generator)}
        if rule.decay == "head":
            options["dt_bias"] = options["dt_bias"][:, 0]
        if not rule.decay:
            options = {
                name: y
                for name, y in options.items()
                if name not in ("use_gate_in_kernel", "A_log", "lower_bound", "dt_bias")
            }
    before = x.S.clone()
    o, S = run.on_decode_kernel(rule, contract.call_of(rule, data | options))
    wanted = getattr(ops, f"naive_{rule.name}")(**data, **options)
    for got, exact in zip((o, S), wanted):
        # fp32 sums of 32 products
        assert torch.allclose(got.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(x.S, before), "the caller's state was written"


def test_who_is_answered_by_the_decode_kernel():
    x = torch.zeros(1, 2, 1, 32)
    kda = rules.RULES["kda"]
    assert not run.decode_answers(kda, contract.Call(x, x, x)), "two tokens are a loop"
    assert not run.decode_answers(kda, contract.Call(x[:, :1], x[:, :1], x[:, :1])), "a CPU has the loop"
