"""Registers, spills, stack and shared memory of every kernel in every variant, compiled without a GPU.

`python -m kda_lab.cuda`
"""

from kda_lab.cuda import chunk, decode, hopper, segments
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.accept import trial


def main():
    """Print the table."""
    modules = chunk, decode, hopper, segments
    variants = [(module.SOURCE, name, variant) for module in modules for name, variant in module.VARIANTS.items()]
    builds = trial.build_all([(source, variant.constants()) for source, _, variant in variants])
    print(f"{'kernel':18}{'variant':40}{'registers':>10}{'spills B':>10}{'stack B':>9}{'shared B':>10}")
    for (_, name, variant), built in zip(variants, builds):
        shared = variant.shared_bytes
        for kernel, r in sorted(cuda_compile.resources(built).items()):
            size = shared[kernel] if isinstance(shared, dict) else shared
            print(f"{kernel:18}{name:40}{r.registers:10}{r.spill_stores + r.spill_loads:10}{r.stack:9}{size:10}")


if __name__ == "__main__":
    main()
