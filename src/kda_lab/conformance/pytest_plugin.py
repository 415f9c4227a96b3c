"""The suite inside anyone's own tests.

One test for each case::

    def test_conformance(kda_case):
        kda_case(my_kernel)

or all of it in one test::

    def test_conformance(kda_conformance):
        kda_conformance(my_kernel, caps="no-varlen", device="cuda", dtype="bfloat16")

``--kda-seed N`` replays the inputs of an earlier run; the seed of a run is printed in pytest's header.
"""

import secrets

import pytest


def pytest_addoption(parser):
    """``--kda-seed`` and ``--kda-op``."""
    group = parser.getgroup("kda", "conformance of delta-rule kernels")
    group.addoption("--kda-seed", type=int, default=None, help="replay the inputs of an earlier run")
    group.addoption("--kda-op", default="kda", help="the rule that kda_case runs, as in kda-lab conformance --op")


def pytest_configure(config):
    """One seed for the whole run, the same in every worker of pytest-xdist."""
    chosen = config.getoption("--kda-seed")
    if chosen is None:
        given = getattr(config, "workerinput", {}).get("kda_seed")
        chosen = secrets.randbelow(10**6) if given is None else given
    config.kda_seed = chosen


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Hand the seed to a worker of pytest-xdist."""
    node.workerinput["kda_seed"] = node.config.kda_seed


def pytest_report_header(config):
    """How to replay this run."""
    return f"kda conformance: replay the same inputs with --kda-seed {config.kda_seed}"


def pytest_generate_tests(metafunc):
    """A test that asks for ``kda_case`` becomes one test for each case."""
    if "kda_case" in metafunc.fixturenames:
        from kda_lab.conformance import chosen

        names = [c.name for c in chosen(metafunc.config.getoption("--kda-op"))]
        metafunc.parametrize("kda_case", names, indirect=True)


@pytest.fixture
def kda_case(request):
    """A function that runs one case on an implementation: fails the test, or skips it where the case is unsupported."""
    op = request.config.getoption("--kda-op")

    def check(function, **options):
        (result,) = found_for(function, op, request.config.kda_seed, [request.param], options)
        if result.outcome == "unsupported":
            pytest.skip(result.reason)
        if result.outcome != "pass":
            pytest.fail(told(result, request.config.kda_seed), pytrace=False)

    return check


@pytest.fixture
def kda_conformance(request):
    """A function that runs all cases (or ``only`` some) on an implementation and returns their results, or fails the
    test.
    """

    def check(function, op="kda", only=None, **options):
        from kda_lab.conformance import all_ok, ok

        found = found_for(function, op, request.config.kda_seed, only, options)
        if not all_ok(found):
            wrong = [told(r, request.config.kda_seed) for r in found if not ok(r)]
            pytest.fail("\n".join(wrong) or "no case is supported, so nothing was shown", pytrace=False)
        return found

    return check


def found_for(function, op, seed, only, options):
    """Results of the cases.   options: caps, dtype (a name), device, layout, as on the command line."""
    import torch

    from kda_lab.conformance import examine

    device = options.pop("device", "cpu")
    dtype = getattr(torch, options.pop("dtype", "bfloat16" if device == "cuda" else "float32"))
    return examine(function, op, dtype, options.pop("caps", None), device, seed=seed, only=only, **options)


def told(result, seed):
    """One failing result in words."""
    from kda_lab.conformance import CASES

    case = CASES[result.case]
    what = f"{case.fault} Smallest input: {case.input}. Replay: --kda-seed {seed}"
    return f"{result.case}: {result.outcome}: {result.reason}\n  {what}"
