"""What a fit can be told, in groups; and the short form that names options without their group."""

import difflib
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import equinox as eqx

from t3._fit.checkpoint import Checkpoint
from t3._fit.methods import METHODS, Method
from t3._fit.objective import Objective
from t3._fit.split import Split
from t3._fit.start import FromData
from t3._fit.validation import Validation, as_validation
from t3._tensor.format import TuckerTensorTrain


class Watch(eqx.Module):
    """Who looks at a fit.

    Attributes:
        callback: called with each record and its point, in every process; return True to stop, then
            in all of them.
        progress: print a line for each record (in the first of many processes).
        checkpoint: file that the state is written to after every step (mc_sgd and adam: after every
            look), by the first process. `t3.FitResult.load` reads it for ``resume=``, on any number
            of devices.
    """

    callback: Callable[..., Any] | None = None
    progress: bool = False
    checkpoint: str | os.PathLike | None = None

    def file(self) -> Checkpoint | None:
        """The checkpoint, where there is one."""
        return None if self.checkpoint is None else Checkpoint(self.checkpoint)


class Told(NamedTuple):
    """All that a fit was told, each group checked."""

    start: TuckerTensorTrain | FromData
    method: Method
    objective: Objective
    validation: Validation | None
    watch: Watch
    split: Split | None


# Options of the groups, by which the short form finds them.
_GROUPS: dict[str, type] = {"objective": Objective, "watch": Watch}
_MEANS_SOMETHING_AS_NONE = ("chunk_size",)


def told(
    x0: Any,
    method: Any,
    objective: Objective | None,
    validation: Any,
    watch: Watch | None,
    devices: Any,
    options: dict[str, Any],
) -> Told:
    """Groups as they were given, or made of the options of the short form.

    Raises:
        TypeError: an option that is none.
        ValueError: options of a group or a method that was given itself; of another method; values
            out of range.
    """
    options = {
        name: value
        for name, value in options.items()
        if value is not None or name in _MEANS_SOMETHING_AS_NONE
    }
    _check_names(options)
    take = lambda names: {name: options.pop(name) for name in names if name in options}  # noqa: E731
    split = _devices(devices, **take(("mesh", "axis")))
    objective = _group("objective", objective, take(_names(Objective)))
    watch = _group("watch", watch, take(_names(Watch)))
    validation = as_validation(validation, **take(("patience",)))
    start = _start(x0, take(("ranks", "shape")), options, method)
    return Told(start, _method(method, options), objective, validation, watch, split)


def _start(x0: Any, given: dict[str, Any], options: dict[str, Any], method: Any) -> Any:
    if isinstance(x0, TuckerTensorTrain | FromData):
        if given:
            raise ValueError(
                f"{next(iter(given))}= is of a start from the data; x0 was given: use x0=None."
            )
        return x0
    if x0 is not None and "ranks" not in given:
        given["ranks"] = x0
    elif x0 is not None:
        raise ValueError("x0 and ranks= both say where to start: give one of them.")
    if (
        "key" in options
        and isinstance(method, str)
        and "key" not in _names(METHODS.get(method, Method))
    ):
        given["key"] = options.pop("key")
    return FromData(**given)


def _method(method: Any, options: dict[str, Any]) -> Method:
    if isinstance(method, Method):
        if options:
            name = next(iter(options))
            raise ValueError(
                f"{name}= is of the method: give it to {type(method).__name__}({name}=...), or name "
                "the method by a string."
            )
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be a t3.Method or one of {sorted(METHODS)}, got {method!r}.")
    known = _names(METHODS[method])
    for name in options:
        if name not in known:
            having = [short for short, cls in METHODS.items() if name in _names(cls)]
            raise ValueError(
                f"{name}= is of method {' and '.join(having)}, got method={method!r}: leave it out."
            )
    return METHODS[method](**options)


def _group(name: str, group: Any, options: dict[str, Any]) -> Any:
    cls = _GROUPS[name]
    if group is None:
        return cls(**options)
    if not isinstance(group, cls):
        raise ValueError(f"{name} must be a t3.{cls.__name__}, got {type(group).__name__}.")
    if options:
        option = next(iter(options))
        raise ValueError(
            f"{option}= is of {name}=, which was given: t3.{cls.__name__}({option}=...)."
        )
    return group


def _devices(devices: Any, mesh: Any = None, axis: str | None = None) -> Split | None:
    if devices is not None:
        if mesh is not None or axis is not None:
            raise ValueError("mesh= and axis= are the short form of devices=: give one of them.")
        mesh = devices
    return Split.of(mesh, axis)


def _check_names(options: dict[str, Any]) -> None:
    known = {"mesh", "axis", "patience", "ranks", "shape", *_names(Objective), *_names(Watch)}
    known.update(name for cls in METHODS.values() for name in _names(cls))
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            raise TypeError(
                f"a fit has no option {name}=.{hint} There are {', '.join(sorted(known))}."
            )


def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
