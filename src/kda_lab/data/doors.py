"""Doors: what a public function says to a keyword that it does not have."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def known(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function; a keyword that it does not have is a TypeError that names the near ones.

    Costs nothing in a call that is right. Python's own sentence names no near ones before version 3.13.

    >>> @known
    ... def scaled(x, *, scale=1.0):
    ...     return x * scale
    >>> scaled(2, scale=3)
    6
    >>> scaled(2, scal=3)
    Traceback (most recent call last):
    TypeError: scaled() has no argument 'scal'; close: scale
    """
    names = [p.name for p in inspect.signature(function).parameters.values() if p.name != "self"]
    shown = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def door(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            unknown = next((name for name in kwargs if name not in names), None)
            if unknown is None:
                raise
            near = difflib.get_close_matches(unknown, names, n=3)
            hint = f"close: {', '.join(near)}" if near else f"it has {', '.join(names)}"
            raise TypeError(f"{shown}() has no argument {unknown!r}; {hint}") from None

    return door
