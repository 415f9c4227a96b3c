"""The pytest plugin, in a session of its own."""

import pytest

pytest_plugins = "pytester"
PLUGIN = "kda_lab.conformance.pytest_plugin"

FILE = """
from kda_lab import ops

def no_packing(q, k, v, g, beta, initial_state=None, output_final_state=False):
    return ops.recurrent_kda(q, k, v, g, beta, initial_state=initial_state, output_final_state=output_final_state)

def doubled(q, k, v, g, beta, **options):
    o, S = ops.recurrent_kda(q, k, v, g, beta, **options)
    return 2 * o, S

def test_each(kda_case):
    kda_case(no_packing, caps="no-backward, no-value-checks")

def test_all(kda_conformance):
    assert len(kda_conformance(no_packing, only=["plain-inputs", "weak-gates"])) == 2

def test_wrong(kda_conformance):
    kda_conformance(doubled, only=["plain-inputs"])
"""


@pytest.fixture
def session(pytester):
    pytester.makepyfile(test_mine=FILE)

    def run(*words):
        return pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider", *words)

    return run


def test_each_case_is_a_test_and_unsupported_ones_are_skipped(session):
    result = session(
        "-q",
        "-k",
        "test_each and (plain or packed or promised or scale or gradients-repeat or base or many-short)",
        "--kda-seed",
        "3",
    )
    outcomes = result.parseoutcomes()
    assert result.ret == 0 and outcomes["passed"] >= 4 and outcomes["skipped"] >= 2


def test_a_fault_fails_with_its_reason_and_its_seed(session):
    result = session("-k", "test_wrong or test_all", "--kda-seed", "3")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*replay the same inputs with --kda-seed 3*", "*plain-inputs: fail: o is off by 1*"])


def test_the_plugin_does_not_bring_torch_into_every_session(pytester):
    pytester.makepyfile("import sys\ndef test_light():\n    assert 'torch' not in sys.modules\n")
    pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider").assert_outcomes(passed=1)
