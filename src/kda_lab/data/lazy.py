"""Names of a package that are imported when they are first used, so that `import kda_lab` loads no torch."""

import difflib
import importlib
from pathlib import Path


def names(package, homes):
    """(``__getattr__``, ``__dir__``) of a package from {module below it: its public names}; "" as a name is the module
    itself.

    The module is named from the package on, or in full where it lies elsewhere. An unknown name is an AttributeError
    with near ones.

    >>> get, listing = names("kda_lab", {"rules": ("", "scan")})
    >>> get("rules").__name__, get("scan").__name__, listing()
    ('kda_lab.rules', 'scan', ['rules', 'scan'])
    >>> get("scann")
    Traceback (most recent call last):
    AttributeError: module 'kda_lab' has no attribute 'scann'; close: scan
    """
    home = {name or module.rpartition(".")[2]: (module, name) for module, found in homes.items() for name in found}

    def get(name):
        if name not in home:
            near = difflib.get_close_matches(name, home, n=3) if not name.startswith("_") else []
            hint = f"; close: {', '.join(near)}" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        module, attribute = home[name]
        loaded = importlib.import_module(module if module.startswith("kda_lab") else f"{package}.{module}")
        return getattr(loaded, attribute) if attribute else loaded

    return get, lambda: sorted(home)


def modules(file):
    """The modules and packages beside a package's ``__init__.py``, as homes for `names`.

    >>> import kda_lab.data
    >>> modules(kda_lab.data.__file__)["lazy"]
    ('',)
    """
    found = [p for p in Path(file).parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    return {p.stem: ("",) for p in sorted(found) if not p.stem.startswith("__")}
