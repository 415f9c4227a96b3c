"""``python -m kda_lab.conformance``: the same as ``kda-lab conformance``."""

import argparse
import sys

from kda_lab.conformance import cli


def main(argv=None):
    """Parse the arguments, run, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="kda-lab conformance", description="Does this function compute the delta rule?"
    )
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
