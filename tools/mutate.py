"""Change one operator at a time in the definitions, and see whether ``kda-lab verify`` turns red.

    python tools/mutate.py [--sample N] [--seed S] [MODULE ...]

A mutant is killed when an equation no longer holds (or crashes). Patches of the registry's own mutants are switched
off, so that a kill is always a check's and never a patch that no longer fits. One child process a mutant, forked
after torch and SymPy are loaded. Exits 0 when every mutant is killed.
"""

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
MODULES = ("rules", "chunk", "triangular", "decay", "affine", "features", "chunk_backward")
SWAPS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add],
    ast.Div: [ast.Mult],
    ast.MatMult: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.Lt: [ast.LtE],
    ast.LtE: [ast.Lt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
}
SECONDS = 60  # a mutant that runs longer has changed a loop: killed


def index_constants(tree):
    """The whole numbers that stand in a subscript, in an argument of ``range``, or as a bound of a slice."""
    for node in ast.walk(tree):
        inside = [node.slice] if isinstance(node, ast.Subscript) else []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            inside = node.args
        for part in inside:
            yield from (n for n in ast.walk(part) if isinstance(n, ast.Constant) and type(n.value) is int)


def sites(tree):
    """(node, line, description, change) for each mutation of a module: operators, operands, transposes, signs, shifted
    indices.
    """
    indices = {id(n) for n in index_constants(tree)}
    for node in ast.walk(tree):
        where = getattr(node, "lineno", None)
        if isinstance(node, ast.BinOp):
            for new in SWAPS.get(type(node.op), []):
                yield (
                    node,
                    where,
                    f"{type(node.op).__name__} -> {new.__name__}",
                    lambda n, new=new: setattr(n, "op", new()),
                )
            if isinstance(node.op, ast.MatMult | ast.Sub):
                yield node, where, f"operands of {type(node.op).__name__} swapped", _swap
        elif isinstance(node, ast.Compare):
            for new in SWAPS.get(type(node.ops[0]), []):
                yield (
                    node,
                    where,
                    f"{type(node.ops[0]).__name__} -> {new.__name__}",
                    lambda n, new=new: n.ops.__setitem__(0, new()),
                )
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield node, where, "minus dropped", lambda n: setattr(n, "op", ast.UAdd())
        elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
            yield node, where, f".{node.attr} dropped", "drop"
        elif isinstance(node, ast.Constant) and id(node) in indices:
            for step in (1, -1):
                yield (
                    node,
                    where,
                    f"{node.value} -> {node.value + step}",
                    lambda n, step=step: setattr(n, "value", n.value + step),
                )


def _swap(node):
    node.left, node.right = node.right, node.left


class _Change(ast.NodeTransformer):
    def __init__(self, target, change):
        self.target, self.change = target, change

    def visit(self, node):
        if node is self.target:
            if self.change == "drop":
                return node.value
            self.change(node)
            return node
        return self.generic_visit(node)


def strip_docstrings(tree):
    """The tree with empty docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0].value.value = ""
    return tree


def mutants(module):
    """All mutants of a module as (line, description, source)."""
    source = (SRC / "kda_lab" / f"{module}.py").read_text()
    count = len(list(sites(ast.parse(source))))
    out = []
    for i in range(count):
        tree = ast.parse(source)
        node, where, text, change = list(sites(tree))[i]
        tree = _Change(node, change if change == "drop" else copy.copy(change)).visit(tree)
        out.append((where, text, ast.unparse(ast.fix_missing_locations(tree))))
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
    def __init__(self, name, source):
        self.name, self.source = f"kda_lab.{name}", source
        self.path = SRC / "kda_lab" / f"{name}.py"

    def find_spec(self, fullname, path=None, target=None):
        if fullname == self.name:
            return importlib.util.spec_from_loader(fullname, _Loader(self.path, self.source))
        return None


def child(module, source):
    """In the child: import the package with one module changed, and judge until something fails."""
    signal.alarm(SECONDS)
    sys.meta_path.insert(0, _Finder(module, source))
    from kda_lab.proof import registry

    registry.variant = lambda function, *patches, **extra: function
    from kda_lab.proof.equations import EQUATIONS

    for equation in EQUATIONS:
        for check in equation.checks():
            check.run(equation.subject)


def survives(module, source):
    """Whether a mutant passes every check, tried in a process of its own."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = 0
        try:
            child(module, source)
        except BaseException:
            code = 1
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status == 0


def main():
    """Try the mutants; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--sample", type=int, help="a seeded sample of this many mutants over all modules")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.path.insert(0, str(SRC))
    import torch

    torch.set_num_threads(1)
    jobs = [(m, *mutant) for m in args.modules for mutant in mutants(m)]
    if args.sample:
        jobs = random.Random(args.seed).sample(jobs, min(args.sample, len(jobs)))
    assert not [m for m in sys.modules if m.startswith("kda_lab")], "the package must load in the children only"
    alive = []
    for done, (module, where, text, source) in enumerate(jobs, 1):
        if survives(module, source):
            alive.append((module, where, text))
            print(f"survives: {module}.py:{where} {text}", flush=True)
        if done % 50 == 0:
            print(f"{done} of {len(jobs)}, {len(alive)} alive", flush=True)
    print(
        f"{len(jobs) - len(alive)} of {len(jobs)} mutants killed ({100 * (1 - len(alive) / max(1, len(jobs))):.1f} %)"
    )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
