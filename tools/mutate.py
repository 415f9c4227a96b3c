"""Change one operator at a time in the definitions, and see whether the proofs turn red.

    python tools/mutate.py [--per-module N] [--seed S] [--jobs J] [--sites] [MODULE ...]

MODULE: dotted names below kda_lab; all mathematical modules if none. A mutant is tried in three stages: the equations
of ``kda-lab verify``, those first that enter the changed function; the module's own doctests; the unit tests that TESTS
names for the module. The last table says which stage has killed how many. A stage that fails or crashes kills, and so
does one that does not come to an end.

Patches of the registry's own mutants are switched off, so that a kill is always a check's and never a patch that no
longer fits. One child process a mutant, forked after torch and SymPy are loaded; a module that is only written anew
must survive first. tools/equivalent_mutants.toml lists the mutants that compute the same, with the reason; an entry
that fits no site, or that is killed, is an error. Exit status 0 when every other mutant is killed, 1 when one survives,
2 for an error.
"""

import argparse
import ast
import contextlib
import copy
import doctest
import functools
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import os
import random
import resource
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
FLOORS = {
    "algebra": "triangular affine chunk chunk_dplr chunk_backward chunk_fused parallel_scan rollback replay",
    "parts": "decay features softmax position",
    "study": "learning capacity costs",
}
MODULES = ("rules", *(f"{floor}.{name}" for floor, names in FLOORS.items() for name in names.split()))
# tests of what is not an equation: refusals, data, shapes; none that patches a function itself
TESTS = {
    "rules": "tests/algebra/test_definitions.py",
    "algebra.chunk": "tests/algebra/test_definitions.py",
    "parts.position": "tests/algebra/test_position.py",
    "study.costs": "tests/study/test_costs.py",
}
STAGES = ("equations", "doctests", "tests")
SWAPS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.MatMult: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.Lt: [ast.LtE],
    ast.LtE: [ast.Lt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
}
# of processor time; the checks take 10: a mutant that runs longer has changed a loop
SECONDS = 60


class Mutant(NamedTuple):
    """One change of a module.   text: the line as it is   change: before and after   number: among its mutants."""

    module: str
    line: int
    text: str
    change: str
    number: int

    def __str__(self):
        return f"{self.module}:{self.line}  {self.change}"


def path_of(module):
    """The file of a dotted name below the package.

    >>> path_of("algebra.chunk").relative_to(SRC).as_posix()
    'kda_lab/algebra/chunk.py'
    """
    return SRC / "kda_lab" / f"{module.replace('.', '/')}.py"


def index_constants(tree):
    """The whole numbers in a subscript or in an argument of ``range``, by identity, each with what stands around it."""
    found = {}
    for node in ast.walk(tree):
        inside = [node.slice] if isinstance(node, ast.Subscript) else []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            inside = node.args
        for part in inside:
            # the walk goes from outside inwards: the nearest stays
            found |= {id(n): node for n in ast.walk(part) if isinstance(n, ast.Constant) and type(n.value) is int}
    return found


def sites(tree):
    """(node, change, shown) for each mutation of a module: operators, operands, transposes, signs, shifted indices.

    change: a function of the node that returns the node to put in its place   shown: the node whose text says what
    changes. Operands that are alike are not swapped.
    """

    def replaced(field, value):
        def change(node):
            setattr(node, field, value)
            return node

        return change

    def swapped(node):
        node.left, node.right = node.right, node.left
        return node

    around = index_constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            yield from ((node, replaced("op", new()), node) for new in SWAPS.get(type(node.op), []))
            if isinstance(node.op, ast.MatMult | ast.Sub) and ast.dump(node.left) != ast.dump(node.right):
                yield node, swapped, node
        elif isinstance(node, ast.Compare):
            rest = node.ops[1:]
            yield from ((node, replaced("ops", [new(), *rest]), node) for new in SWAPS.get(type(node.ops[0]), []))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield node, replaced("op", ast.UAdd()), node
        elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
            yield node, lambda n: n.value, node
        elif id(node) in around:
            yield from ((node, replaced("value", node.value + step), around[id(node)]) for step in (1, -1))


class _Change(ast.NodeTransformer):
    def __init__(self, target, change):
        self.target, self.change = target, change

    def visit(self, node):
        return self.change(node) if node is self.target else self.generic_visit(node)


def mutants(module, source=None):
    """All mutants of a module.

    >>> [m.change for m in mutants("toy", "x = a.T - b[1]")]
    ['a.T - b[1] -> a.T + b[1]', 'a.T - b[1] -> b[1] - a.T', 'a.T -> a', 'b[1] -> b[2]', 'b[1] -> b[0]']
    """
    source = path_of(module).read_text() if source is None else source
    lines = source.splitlines()
    out = []
    for number, (node, change, shown) in enumerate(sites(ast.parse(source))):
        copies = {}
        after = copy.deepcopy(shown, copies)
        changed = change(copies[id(node)])
        text = f"{ast.unparse(shown)} -> {ast.unparse(changed if shown is node else after)}"
        out.append(Mutant(module, node.lineno, lines[node.lineno - 1].strip(), text, number))
    return out


def mutated(source, number):
    """The source with its mutant of this number.

    >>> mutated("x = a.T - b[1]", 2)
    'x = a - b[1]'
    """
    tree = ast.parse(source)
    node, change, _ = list(sites(tree))[number]
    return ast.unparse(ast.fix_missing_locations(_Change(node, change).visit(tree)))


def equivalents(found, listed):
    """{(module, text, change): reason} of the listed mutants. Raises ValueError for an entry that fits no site.

    found: all mutants of the modules on trial   listed: the entries of the file that lists them.

    >>> equivalents(mutants("toy", "x = a + b"), [dict(module="toy", line="x = a + b", change="a + b -> a", why="")])
    Traceback (most recent call last):
    ValueError: toy: no mutant 'a + b -> a' of the line 'x = a + b'; take the entry out of equivalent_mutants.toml
    """
    there = {(m.module, m.text, m.change) for m in found}
    out = {}
    for entry in listed:
        key = entry["module"], entry["line"], entry["change"]
        if key not in there:
            raise ValueError(
                f"{key[0]}: no mutant {key[2]!r} of the line {key[1]!r}; take the entry out of {EQUIVALENT.name}"
            )
        out[key] = entry["why"]
    return out


class _Loader(importlib.abc.Loader):
    def __init__(self, path, source):
        self.path, self.source = path, source

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = str(self.path)
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, sources):
        self.loaders = {f"kda_lab.{module}": _Loader(path_of(module), source) for module, source in sources.items()}

    def find_spec(self, fullname, path=None, target=None):
        loader = self.loaders.get(fullname)
        return loader and importlib.util.spec_from_loader(fullname, loader)


def in_child(work):
    """Fork. Returns (process id, end of a pipe); the child writes what ``work`` returns there, as JSON."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 0
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.write(write, json.dumps(work()).encode())
    except BaseException as error:
        os.write(write, json.dumps(["start", f"{type(error).__name__}: {error}"[:200]]).encode())
        code = 1
    os._exit(code)


def answer(read):
    """What a child has written, or None when it was killed before."""
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    return json.loads(text) if text else None


def alone(work):
    """What ``work`` returns in a child of its own."""
    pid, read = in_child(work)
    result = answer(read)
    os.waitpid(pid, 0)
    return result


def traced():
    """In a child: for each equation its seconds and the functions of the package that it enters, as [module, line]."""
    from kda_lab.proof.equations import EQUATIONS

    out = {}
    for equation in EQUATIONS:
        entered, start = set(), time.perf_counter()

        def note(frame, event, argument, entered=entered):
            if event == "call":
                entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        *exact, numeric = equation.checks()
        for check in exact:
            check.run(equation.subject)
        # the floats enter what the proof enters, and are quick to follow
        sys.setprofile(note)
        numeric.run(equation.subject)
        sys.setprofile(None)
        package = str(SRC / "kda_lab") + os.sep
        out[equation.slug] = (
            time.perf_counter() - start,
            [
                [name.removeprefix(package).removesuffix(".py").replace(os.sep, "."), line]
                for name, line in entered
                if name.startswith(package)
            ],
        )
    return out


def order(trace, module, line):
    """The equations, those first that enter the function around a line, then those that enter its module, then others;
    the quick ones first.   trace: as ``traced`` returns it.   Returns slugs.

    >>> order({"a": (2, []), "b": (1, [["rules", 12]]), "c": (9, [["rules", 99]])}, "rules", 15)
    ['b', 'c', 'a']
    """
    tree = ast.parse(path_of(module).read_text())
    around = next((n for n in tree.body if n.lineno <= line <= n.end_lineno), None)
    span = (around.lineno - len(getattr(around, "decorator_list", ())), around.end_lineno) if around else (0, 0)

    def rank(slug):
        seconds, entered = trace[slug]
        own = [at for name, at in entered if name == module]
        return not any(span[0] <= at <= span[1] for at in own), not own, seconds

    return sorted(trace, key=rank)


def trial(sources, slugs):
    """In a child: import the package with some modules changed, and judge until something fails.

    sources: {module: source}   slugs: the equations in their order   returns (stage, what failed there), or None for a
    survivor.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.meta_path.insert(0, _Finder(sources))
    try:
        from kda_lab.proof import registry

        registry.variant = lambda function, *patches, **extra: function
        from kda_lab.proof.equations import equation
    except Exception as error:
        return "equations", f"import, {type(error).__name__}: {error}"[:200]
    for slug in slugs:
        # floats first: they are cheap
        for check in reversed((entry := equation(slug)).checks()):
            try:
                check.run(entry.subject)
            except Exception:
                return "equations", slug
    # as for pytest in pyproject.toml
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for module in sources:
        if doctest.testmod(importlib.import_module(f"kda_lab.{module}"), optionflags=flags).failed:
            return "doctests", module
    for tests in sorted({TESTS[module] for module in sources if module in TESTS}):
        import pytest

        if pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(ROOT / tests)]):
            return "tests", tests
    return None


def outcomes(jobs, slugs, workers):
    """(mutant, (stage, check) or None) for each mutant, in the order in which they end; ``workers`` at a time."""
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop()
            source = mutated(path_of(mutant.module).read_text(), mutant.number)
            pid, read = in_child(functools.partial(trial, {mutant.module: source}, slugs(mutant)))
            running[pid] = mutant, read
        pid, status = os.wait()
        mutant, read = running.pop(pid)
        result = answer(read)
        if result and result[0] == "start":
            raise RuntimeError(f"{mutant}: {result[1]}")
        yield mutant, ("equations", "no end") if os.WIFSIGNALED(status) else result


def table(rows):
    """The last table: a line a module.   rows: {module: Counter of stages, "sites", "same" and "alive"}.

    >>> print(table({"rules": Counter(sites=9, equations=3, alive=1)}))
    module                     sites  tried  equations  doctests  tests  same  alive  killed
    rules                          9      4          3         0      0     0      1  75.0 %
    """
    names = ("sites", "tried", *STAGES, "same", "alive")
    out = [f"{'module':25s} " + "  ".join(f"{name:>5s}" for name in names) + "  killed"]
    for module, row in rows.items():
        killed = sum(row[stage] for stage in STAGES)
        tried = killed + row["same"] + row["alive"]
        shown = {**row, "tried": tried}
        cells = "  ".join(f"{shown.get(name, 0):{max(5, len(name))}d}" for name in names)
        out.append(f"{module:25s} {cells}  {100 * killed / max(1, tried - row['same']):.1f} %")
    return "\n".join(out)


def load():
    """Load what each child needs and no mutant changes."""
    import pytest  # noqa: F401
    import sympy.polys.rings  # noqa: F401
    import torch

    torch.set_num_threads(1)
    assert not [m for m in sys.modules if m.startswith("kda_lab")], "the package must load in the children only"


def main():
    """Try the mutants: 1 if one survives, 2 for an error."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]).splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--per-module", type=int, help="a seeded sample of this many mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--sites", action="store_true", help="show which check has killed each mutant")
    args = parser.parse_args()
    sys.path[:0] = [str(SRC), str(ROOT)]
    os.chdir(ROOT)
    found = {module: mutants(module) for module in args.modules}
    listed = tomllib.loads(EQUIVALENT.read_text())["mutant"] if EQUIVALENT.exists() else []
    try:
        same = equivalents([m for all_ in found.values() for m in all_], [e for e in listed if e["module"] in found])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    load()
    trace = alone(traced)
    if not isinstance(trace, dict):
        print(f"the equations fail before anything is changed: {trace}", file=sys.stderr)
        return 2
    anew = {module: ast.unparse(ast.parse(path_of(module).read_text())) for module in found}
    if result := alone(functools.partial(trial, anew, list(trace))):
        print(f"unchanged, yet rejected by {result}", file=sys.stderr)
        return 2
    slugs = lambda m: order(trace, m.module, m.line)
    rows = {module: Counter(sites=len(all_)) for module, all_ in found.items()}
    jobs, wrong = [], 0
    for module, all_ in found.items():
        n = min(args.per_module or len(all_), len(all_))
        jobs += random.Random(f"{args.seed} {module}").sample(all_, n)
    for mutant, result in outcomes(jobs, slugs, args.jobs):
        known = (mutant.module, mutant.text, mutant.change) in same
        if known and result:
            print(f"listed as the same, yet rejected by {result}: {mutant}", file=sys.stderr)
            wrong += 1
        rows[mutant.module]["same" if known else result[0] if result else "alive"] += 1
        if not result and not known:
            print(f"survives: {mutant}      in: {mutant.text}", flush=True)
        elif args.sites:
            print(f"{'same' if known else 'killed'}: {mutant}  {result or ''}", flush=True)
    with contextlib.suppress(BrokenPipeError):
        print(table(rows))
    return 2 if wrong else 1 if any(row["alive"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
