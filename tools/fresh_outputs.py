"""Drop executed outputs if the code that they ran on has changed since.

The notebook cache looks at a page's cells alone, so it would keep outputs of an older library. The key covers the code,
the recordings, the exercises and the pinned versions; what only changes the look of pages is not in it.
"""

import hashlib
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INPUTS = ["src", "requirements.txt", "constraints-lock.txt", "pyproject.toml", "_config.yml", "conf.py", "book/_ext"]
DROPPED = [
    ".jupyter_cache",
    ".doctrees",
    ".doctrees-sphinx",
    ".doctrees-page",
    "jupyter_execute",
    "html",
    "sphinx",
    "page",
]


def key(root: Path = ROOT) -> str:
    """SHA-256 over the names and contents of all inputs."""
    total = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        top = root / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            skip = "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts)
            if path.is_file() and not skip and path.suffix not in (".pyc", ".cubin"):
                total.update(
                    f"{path.relative_to(root).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
                )
    return total.hexdigest()


def main(root: Path = ROOT) -> None:
    """Compare the key with that of the last build; empty the build folder's caches if it differs."""
    build, now = root / "_build", key(root)
    stamp = build / "outputs-key"
    if not stamp.is_file() or stamp.read_text() != now:
        for name in DROPPED:
            shutil.rmtree(build / name, ignore_errors=True)
        build.mkdir(exist_ok=True)
        stamp.write_text(now)
        print("every page runs: the code has changed since the last build, or there was none")


if __name__ == "__main__":
    main()
