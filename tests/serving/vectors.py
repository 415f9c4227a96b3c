"""Files of tests/serving/fixtures: traces of vLLM 0.32.0's scheduler, and values that its functions returned."""

import gzip
import json
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"


def unpacked(name):
    """The JSON of ``fixtures/NAME.json.gz``."""
    return json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))


# {what was called: cases with arguments and results}
VECTORS = unpacked("vectors")
