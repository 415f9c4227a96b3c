"""On what a run was made: device, driver, versions, day."""

import datetime
import platform
import shutil
import subprocess
from typing import Any


def provenance() -> dict[str, Any]:
    """Device, driver, versions and day of the recording."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()}), for a test",
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if cuda else None,
        "driver": _driver() if cuda else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return None
    shown = subprocess.run(
        [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return shown.stdout.split("\n")[0].strip() or None
