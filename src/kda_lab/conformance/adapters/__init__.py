"""Implementations: any function with the arguments of ``kda_lab.ops``, and what has to be converted around it."""

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kda_lab.conformance.capabilities import CLAIMED, Capabilities, from_signature, parameters, parse
from kda_lab.conformance.case import ALL
from kda_lab.rules import RULES

LAYOUTS = ("vk", "kv")


class Implementation(NamedTuple):
    """A function under test.   layout: "vk" for states [N, HV, V, K], "kv" for [N, HV, K, V].

    >>> from kda_lab import ops
    >>> wrap(ops.chunk_kda).name
    'kda_lab.ops.kda:chunk_kda'
    """

    name: str
    function: Any
    rule: str
    capabilities: Capabilities
    device: str
    layout: str

    def call(self, arguments):
        """(o, S) for arguments in the contract's words: tensors by position, options by name, states converted."""
        named = dict(arguments)
        S = named.get("initial_state")
        if S is not None and self.layout == "kv":
            # a state of its own, as the caller of such a kernel would have it
            named["initial_state"] = S.mT.contiguous()
        tensors = [named.pop(name) for name in RULES[self.rule].tensors]
        result = self.function(*tensors, **named)
        if (
            self.layout == "kv"
            and isinstance(result, tuple)
            and len(result) == 2
            and isinstance(result[1], torch.Tensor)
        ):
            return result[0], result[1].mT
        return result


def wrap(function, rule="kda", capabilities=None, device="cpu", layout=None, name=None):
    """An Implementation from a function.

    capabilities: words as for ``capabilities.parse``; they change what the function's own attribute ``capabilities``
    says, if it has one. Features for which its signature has no parameter are missing. layout: "vk", "kv", or what its
    attribute
    ``state_layout`` says, else "vk".

    >>> def mine(q, k, v, g, beta, initial_state=None, output_final_state=False): ...
    >>> mine.capabilities = "no-backward"
    >>> wrap(mine).capabilities.can("backward"), wrap(mine).capabilities.can("varlen")
    (False, False)
    """
    if rule not in ALL:
        raise ValueError(f"op must be one of {', '.join(ALL)}, got {rule!r}")
    layout = layout or getattr(function, "state_layout", "vk")
    if layout not in LAYOUTS:
        raise ValueError(f"the state layout must be vk ([N, HV, V, K]) or kv ([N, HV, K, V]), got {layout!r}")
    own = parse(getattr(function, "capabilities", ""), Capabilities(missing=CLAIMED | from_signature(function)))
    found = parse(capabilities, own)
    if parameters(function) is not None:
        # no declaration gives a function a parameter that it does not have
        found = found._replace(missing=found.missing | from_signature(function))
    name = (
        name or f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"
    )
    return Implementation(name, function, rule, found, device, layout)


def libraries(function):
    """Versions of the libraries that an implementation uses, by name: what its attribute ``libraries``, a function,
    returns.

    What fails in it costs no case: {} then.

    >>> def mine(q, k, v, g, beta): ...
    >>> mine.libraries = lambda: versions("torch")
    >>> list(libraries(mine))
    ['torch']
    """
    try:
        return {name: str(version) for name, version in getattr(function, "libraries", dict)().items()}
    except Exception:
        return {}


def versions(*packages):
    """The versions of installed packages by name; "not installed" for the others, also for modules without a package's
    metadata.

    >>> versions("a-package-that-is-not-there")
    {'a-package-that-is-not-there': 'not installed'}
    """
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def load(text):
    """The function that ``package.module:function`` or ``./file.py:function`` names. Raises ValueError with a sentence.

    >>> load("kda_lab.ops:chunk_kda").__name__
    'chunk_kda'
    >>> load("kda_lab.ops:chunk_kdaa")
    Traceback (most recent call last):
    ValueError: kda_lab.ops has no function chunk_kdaa; close: chunk_kda, ...
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"--impl must be package.module:function or ./file.py:function, got {text!r}")
    module = from_file(where) if where.endswith(".py") else from_package(where)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            import difflib

            near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
            hint = f"; close: {', '.join(near)}" if near else ""
            raise ValueError(f"{where} has no function {name}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{text} is a {type(found).__name__}, not a function; name one that returns (o, final state)")
    return found


def from_package(name):
    """The module of this name, sought in the current directory, too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ValueError(
                f"there is no module {name}; install it, or run from the directory that holds it"
            ) from None
        raise ValueError(f"{name} needs the package {missing}, which is not installed") from None
    except Exception as error:
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def from_file(path):
    """The module in a file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give its path from the current directory")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # its neighbours can be imported, as when it is run as a script
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
