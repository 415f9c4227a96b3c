"""What users write and read: capabilities, names of implementations, outcomes of calls."""

import pytest
import torch

from kda_lab import conformance, ops
from kda_lab.conformance import adapters, capabilities
from kda_lab.conformance.capabilities import Unsupported

pytestmark = pytest.mark.usefixtures("one_thread")


def bare(q, k, v, g, beta):
    return ops.recurrent_kda(q, k, v, g, beta)


def test_what_a_signature_lacks_is_unsupported_and_never_passed():
    found = conformance.examine(
        bare, only=["a-given-scale", "packed-sequences-of-every-length", "plain-inputs", "no-tokens-at-all"]
    )
    by_name = {r.case: r for r in found}
    assert by_name["plain-inputs"].outcome == by_name["no-tokens-at-all"].outcome == "pass"
    assert by_name["a-given-scale"] == by_name["a-given-scale"]._replace(outcome="unsupported", reason="needs scale")
    assert by_name["packed-sequences-of-every-length"].outcome == "unsupported"


def test_nothing_but_unsupported_cases_is_no_success():
    found = conformance.examine(bare, only=["a-given-scale"])
    assert not conformance.all_ok(found)


def test_no_declaration_gives_a_function_a_parameter():
    assert not conformance.wrap(bare, capabilities="varlen").capabilities.can("varlen")


def test_declared_words_change_what_the_function_says_of_itself():
    def function(q, k, v, g, beta, **options): ...

    function.capabilities = "no-varlen, chunk=16"
    found = conformance.wrap(function, capabilities="varlen, no-backward").capabilities
    assert found.can("varlen") and not found.can("backward") and found.chunk == 16


@pytest.mark.parametrize(
    "text",
    ["no-backwards", "chunk=0", "chunk=x", "sizes=128", "dtype=int8", "lowest-gate=5", "speed=1", "arithmetic=fp8"],
)
def test_a_wrong_word_is_an_error_that_names_it(text):
    with pytest.raises(ValueError, match=text.split("=")[0]):
        capabilities.parse(text)


def test_only_declared_head_sizes_are_asked_for():
    sizes = set()

    def function(q, k, v, g, beta, initial_state=None, output_final_state=False):
        sizes.add((q.shape[-1], v.shape[-1]))
        return ops.chunk_kda(q, k, v, g, beta, initial_state=initial_state, output_final_state=output_final_state)

    found = conformance.examine(
        function, only=["numbers", "shapes"], capabilities="sizes=8x8, no-grouped-heads, no-value-checks"
    )
    assert sizes == {(8, 8)}
    assert {r.case for r in found if "head size" in r.reason} == {"odd-head-sizes", "a-head-size-beyond-the-tiles"}


def test_gates_below_the_declared_floor_are_not_asked_for():
    found = conformance.examine(
        ops.chunk_kda, only=["uniform-strong-gates", "gates-below-the-usual-bound"], capabilities="lowest-gate=-5"
    )
    assert [r.outcome for r in found] == ["pass", "unsupported"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("K must be 128"), "refused"),
        (NotImplementedError("no"), "refused"),
        (RuntimeError("expected a multiple of 16"), "refused"),
        (type("graphNotSupportedError", (Exception,), {})("no engine\n  [0] one: declined"), "refused"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "error"),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), "error"),
        (IndexError("list index out of range"), "error"),
        (KeyError("x"), "error"),
    ],
)
def test_a_refusal_is_told_from_a_crash(error, outcome):
    def function(q, k, v, g, beta):
        raise error

    (result,) = conformance.examine(function, only=["plain-inputs"])
    assert result.outcome == outcome and type(error).__name__ in result.reason


def test_the_whole_message_is_kept_in_one_line():
    def function(q, k, v, g, beta):
        raise NotImplementedError("no engine:\n  [0] one: declined\n  [1] two: " + "x" * 2000)

    (result,) = conformance.examine(function, only=["plain-inputs"])
    assert "no engine: [0] one: declined [1] two: xx" in result.reason and 1200 <= len(result.reason) < 1300


def test_an_error_outside_of_the_call_is_an_error_of_the_case():
    def function(q, k, v, g, beta):
        # as a launch that fails late: the error comes where the result is read
        return torch.zeros_like(v, device="meta"), None

    (result,) = conformance.examine(function, only=["plain-inputs"])
    assert result.outcome == "error" and result.reason.startswith("outside of the implementation's call: ")


def test_a_refusal_passes_only_where_the_contract_allows_it():
    def function(q, k, v, g, beta, **options):
        if v.shape[2] != q.shape[2] or q.shape[-1] % 4:
            raise ValueError("no such sizes")
        return ops.chunk_kda(q, k, v, g, beta, **options)

    names = ["value-heads-share-keys-in-groups", "odd-head-sizes", "gate-parameters-belong-to-value-heads"]
    assert [r.outcome for r in conformance.examine(function, only=names)] == ["pass", "pass", "refused"]


def test_a_positive_gate_must_be_refused():
    def function(q, k, v, g, beta, **options):
        return ops.chunk_kda(q, k, v, g.clamp(max=0), beta, **options)

    found = conformance.examine(function, only=["positive-gates-are-refused", "the-decay-itself-is-refused"])
    assert [r.outcome for r in found] == ["fail", "fail"]


@pytest.mark.parametrize("result", [None, 3, (torch.zeros(1), None), (torch.zeros(1, 20, 2, 24),)])
def test_results_of_another_kind_are_named(result):
    (found,) = conformance.examine(lambda q, k, v, g, beta: result, only=["a-token-reads-its-own-write"])
    assert found.outcome == "fail" and "must" in found.reason


def test_a_state_stored_key_first_is_named():
    def function(q, k, v, g, beta, initial_state=None, output_final_state=False):
        S = None if initial_state is None else initial_state.mT
        o, S = ops.chunk_kda(q, k, v, g, beta, initial_state=S, output_final_state=output_final_state)
        return o, None if S is None else S.mT

    (wrong,) = conformance.examine(function, only=["no-state-is-a-zero-state"])
    assert wrong.outcome == "fail" and "--state-layout kv" in wrong.reason
    names = ["no-state-is-a-zero-state", "a-square-state-is-not-transposed", "no-tokens-at-all"]
    assert {r.outcome for r in conformance.examine(function, only=names, layout="kv")} == {"pass"}
    function.state_layout = "kv"
    assert {r.outcome for r in conformance.examine(function, only=names)} == {"pass"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kda_lab.ops", "must be package.module:function"),
        ("kda_lab.opss:chunk_kda", "there is no module kda_lab.opss"),
        ("kda_lab.ops:chunk_kdb", "close: chunk_kda"),
        ("kda_lab.ops.contract:FLOATS", "is a tuple, not a function"),
        ("./nowhere.py:f", "there is no file nowhere.py"),
    ],
)
def test_a_wrong_name_is_an_error_in_one_sentence(text, words):
    with pytest.raises(ValueError, match=words):
        adapters.load(text)


def test_a_module_that_fails_or_lacks_a_package_says_so(tmp_path, monkeypatch):
    (tmp_path / "broken_kda.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "failing_kda.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="broken_kda needs the package a_package_that_is_not_there"):
        adapters.load("broken_kda:f")
    with pytest.raises(ValueError, match="failing_kda.py cannot be run: ZeroDivisionError"):
        adapters.load("./failing_kda.py:f")


def test_the_same_seed_makes_the_same_inputs_and_another_seed_others():
    seen = []

    def function(q, k, v, g, beta):
        seen.append(v.sum().item())
        return ops.recurrent_kda(q, k, v, g, beta)

    for seed in (4, 4, 5):
        conformance.examine(function, only=["weak-gates"], seed=seed, capabilities="arithmetic=float32")
    assert seen[0] == seen[1] != seen[2]


def test_a_missing_feature_is_named():
    with pytest.raises(Unsupported, match="varlen, backward"):
        capabilities.parse("no-varlen,no-backward").need("varlen", "scale", "backward")
