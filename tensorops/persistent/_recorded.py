"""Arrays of a step that is being recorded: NumPy arrays on which only what can be run again is allowed.

A view of an array is one here, too, with the same memory. What computes is a call that is recorded; anything else is
an error that names it, as its result would stay what it was when the step was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorops.libraries import Library
from tensorops.persistent._captured import CaptureError

if TYPE_CHECKING:
    from tensorops.persistent._recorder import Recorder

ADVICE = "which cannot be recorded; use operators of tensorops"


class Recorded:
    """An array of a step that is being recorded.

    Parameters
    ----------
    value
        The array in NumPy, with the values that it has while the step is recorded.
    recorder
        What records calls.
    """

    __slots__ = ("recorder", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: np.ndarray[Any, Any], recorder: Recorder) -> None:
        self.value, self.recorder = value, recorder

    # ------------------------------------------------------------------ metadata

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        dtype: np.dtype[Any] = self.value.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.value.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.value.size

    @property
    def device(self) -> str:
        """Where NumPy's arrays are."""
        return "cpu"

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"<recorded {self.dtype} {self.shape}>"

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return LIBRARY.xp

    # --------------------------------------------------------------------- views

    @property
    def T(self) -> Recorded:  # noqa: N802 - the standard's name
        """The transpose of a matrix."""
        return self.view(self.value.T)

    @property
    def mT(self) -> Recorded:  # noqa: N802 - the standard's name
        """With the last two axes exchanged."""
        return self.view(np.swapaxes(self.value, -1, -2))

    def view(self, value: np.ndarray[Any, Any]) -> Recorded:
        """Return a view of this array's memory."""
        return Recorded(value, self.recorder)

    def reshape(self, *shape: Any) -> Recorded:
        """Return the elements in another shape."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self.recorder.reshape(self, tuple(wanted))

    def __getitem__(self, key: Any) -> Recorded:
        place = _indices_in(key)
        if place is None:
            return self.view(self.value[_only_slices(key, "reads")])
        return self.recorder.take(self, _full(key)[place], self._axis(key, place))

    def __setitem__(self, key: Any, value: Any) -> None:
        place = _indices_in(key)
        if place is None:
            self.recorder.write(self.view(self.value[_only_slices(key, "writes")]), value)
        else:
            self.recorder.put(self, _full(key)[place], self._axis(key, place), value)

    def _axis(self, key: Any, place: int) -> int:
        """Return the axis that an array of indices is for; all other axes must be whole."""
        every = _full(key)
        if any(each != slice(None) for i, each in enumerate(every) if i != place and each is not Ellipsis):
            raise CaptureError("an array of indices can be recorded only with whole axes: x[:, indices, :]")
        if Ellipsis in every[:place]:
            return self.ndim - len(every) + place
        return place

    # --------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> Recorded:
        return self.recorder.arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Recorded:
        return self.recorder.arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Recorded:
        return self.recorder.arithmetic("subtract", self, other)

    def __rsub__(self, other: Any) -> Recorded:
        return self.recorder.arithmetic("subtract", other, self)

    def __mul__(self, other: Any) -> Recorded:
        return self.recorder.arithmetic("multiply", self, other)

    def __rmul__(self, other: Any) -> Recorded:
        return self.recorder.arithmetic("multiply", other, self)

    # ------------------------------------------------------------------ refusals

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CaptureError(f"the step computes with NumPy, {ADVICE}")

    def __array_function__(self, func: Any, *_: Any) -> NoReturn:
        raise CaptureError(f"the step calls numpy.{func.__name__}, {ADVICE}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Recorded:
        if method == "__call__" and not options and ufunc.__name__ in ("add", "subtract", "multiply"):
            return self.recorder.arithmetic(ufunc.__name__, *inputs)
        raise CaptureError(f"the step calls numpy.{ufunc.__name__}, {ADVICE}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Recorded:
        name = {"add": "add", "sub": "subtract", "mul": "multiply"}.get(func.__name__)
        if name and not kwargs and len(args) == 2:
            recorder: Recorder = next(x.recorder for x in args if isinstance(x, Recorded))
            return recorder.arithmetic(name, *args)
        raise CaptureError(f"the step calls torch.{func.__name__}, {ADVICE}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CaptureError(f"the step uses .{name} of an array, {ADVICE}")


def _refuse(name: str, what: str) -> Any:
    def method(self: Recorded, *_: Any) -> NoReturn:
        raise CaptureError(f"the step {what}; the value would stay what it is while the step is recorded")

    method.__name__ = name
    return method


for _name in ("__bool__", "__int__", "__float__", "__complex__", "__index__", "__iter__", "item", "tolist"):
    setattr(Recorded, _name, _refuse(_name, "reads a value of an array in Python"))
for _name in (
    "__truediv__", "__rtruediv__", "__floordiv__", "__mod__", "__pow__", "__rpow__", "__matmul__", "__rmatmul__",
    "__neg__", "__abs__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__", "__invert__",
    "__iadd__", "__isub__", "__imul__", "__itruediv__",
):  # fmt: skip
    setattr(Recorded, _name, _refuse(_name, f"computes with {_name}, which cannot be recorded"))


def _full(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _indices_in(key: Any) -> int | None:
    """Return the place of the array of indices in a key, if there is one."""
    places = [i for i, each in enumerate(_full(key)) if isinstance(each, Recorded)]
    if len(places) > 1:
        raise CaptureError("more than one array of indices cannot be recorded")
    return places[0] if places else None


def _only_slices(key: Any, verb: str) -> Any:
    for each in _full(key):
        plain = isinstance(each, slice | int | np.integer) and not isinstance(each, bool)
        if not (each is None or each is Ellipsis or plain):
            raise CaptureError(f"the step {verb} elements at {each!r:.60}, which cannot be recorded")
    return key if Ellipsis in _full(key) else (*_full(key), Ellipsis)  # a single element is a view as well


def _unmovable(*_: Any) -> NoReturn:
    raise CaptureError("the step moves an array to another library, which cannot be recorded")


LIBRARY = Library(
    name="a step that is being recorded",
    packages=("tensorops",),
    array_type="tensorops.persistent._recorded:Recorded",
    standard="tensorops.persistent._namespace",
    to_numpy=_unmovable,
    from_numpy=_unmovable,
)
"""Whose arrays they are for `tensorops.get_namespace`."""
