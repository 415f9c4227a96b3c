"""Registers, spills, stack and shared memory of every kernel in every example, compiled without a GPU.

`python -m kda_lab.cuda`
"""

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.accept import trial
from kda_lab.cuda.kernels import KERNELS


def main():
    """Print the table."""
    modules = [kernel.module for kernel in KERNELS.values()]
    kinds = [(module.SOURCE, name, constants) for module in modules for name, constants in module.EXAMPLES.items()]
    builds = trial.build_all([(source, constants.defines()) for source, _, constants in kinds])
    print(f"{'kernel':18}{'constants':40}{'registers':>10}{'spills B':>10}{'stack B':>9}{'shared B':>10}")
    for (_, name, constants), built in zip(kinds, builds):
        for kernel, r in sorted(cuda_compile.resources(built).items()):
            spills, size = r.spill_stores + r.spill_loads, constants.shared_bytes[kernel]
            print(f"{kernel:18}{name:40}{r.registers:10}{spills:10}{r.stack:9}{size:10}")


if __name__ == "__main__":
    main()
