"""Unusual values for each kind of argument: some mean the same as the plain value, others mean nothing."""

import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mucudnn.plans.plan import Plan


class Odd(NamedTuple):
    """An unusual value for an argument. `make` builds it from the plain value, anew for each call.

    A value that `is_taken` means the same as the plain one; any other has to be refused.
    """

    name: str
    make: Callable[[Any], object]
    is_taken: bool

    def __repr__(self) -> str:
        return self.name


def taken(**values: Callable[[Any], object]) -> tuple[Odd, ...]:
    return tuple(Odd(name, make, True) for name, make in values.items())


def refused(**values: Callable[[Any], object]) -> tuple[Odd, ...]:
    return tuple(Odd(name, make, False) for name, make in values.items())


class Index:
    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Failing:
    """An object each of whose methods raises an error."""

    def _fail(self, *_: object, **__: object) -> Any:
        raise RuntimeError("this always fails\nin two lines")

    __index__ = __float__ = __len__ = __iter__ = __getitem__ = __repr__ = __fspath__ = _fail
    __dlpack__ = __dlpack_device__ = _fail
    __array_interface__ = property(_fail)
    __hash__ = None  # type: ignore[assignment]


class Described:
    """An array with an array interface and nothing else.

    `changes` replace entries of the interface; LEFT_OUT removes one.
    """

    def __init__(self, values: np.ndarray, **changes: object) -> None:
        self.values = values
        described = {**values.__array_interface__, **changes}
        self.__array_interface__ = {key: value for key, value in described.items() if value is not LEFT_OUT}


LEFT_OUT = object()


class OnlyDLPack:
    """An array of a library without the array API."""

    def __init__(self, values: np.ndarray, device: object = (1, 0), capsule: object = None) -> None:
        self.values, self.device, self.capsule = values, device, capsule

    def __dlpack__(self, **arguments: object) -> object:
        return self.capsule or self.values.__dlpack__(**arguments)

    def __dlpack_device__(self) -> object:
        return self.device


class Subclass(np.ndarray):
    pass


class Text(str):
    pass


def as_enum(value: object) -> Enum:
    return Enum("Named", {"ONLY": value}, type=type(value)).ONLY


def unaligned(array: np.ndarray) -> np.ndarray:
    room = np.frombuffer(bytearray(array.nbytes + 1), np.uint8)[1:]
    return room.view(array.dtype).reshape(array.shape)


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def with_first_size(sizes: tuple[int, ...], first: object) -> tuple[object, ...]:
    return (first, *sizes[1:])


NEITHER = refused(
    none=lambda _: None,
    text=lambda v: str(v),
    bytes=lambda _: b"1",
    an_object=lambda _: object(),
    a_type=lambda _: int,
    failing=lambda _: Failing(),
    dict=lambda _: {1: 1},
    set=lambda _: {1},
    iterator=lambda _: iter([1, 1]),
    nan=lambda _: math.nan,
    infinity=lambda _: -math.inf,
    complex=lambda _: 1 + 0j,
    true=lambda _: True,
    false=lambda _: False,
    numpy_bool=lambda _: np.True_,
    duration=lambda _: np.timedelta64(1),
    numpy_text=lambda _: np.str_("1"),
    array_of_text=lambda _: np.array("1"),
    enormous=lambda _: 10**5000,
    nested=lambda _: [[1, 1], [1, 1]],
)

SIZE = (
    *NEITHER,
    *taken(numpy=np.int64, byte=np.uint8, array_without_axes=np.array, index=Index, enum=as_enum),
    *refused(
        float=float,
        numpy_float=np.float32,
        fraction=Fraction,
        decimal=Decimal,
        negative=lambda v: -v - 1,
        beyond_int=lambda _: 2**31,
        beyond_int64=lambda _: 2**70,
        numpy_beyond_int=lambda _: np.uint64(2**64 - 1),
    ),
)


def sizes(dims: int) -> tuple[Odd, ...]:
    """Return unusual values for a stride, padding or dilation."""
    return (
        *SIZE,
        *taken(
            tuple=lambda v: (v,) * dims,
            list=lambda v: [v] * dims,
            array=lambda v: np.array([v] * dims),
            deque=lambda v: deque([v] * dims),
            numpy_in_a_tuple=lambda v: (np.int32(v),) * dims,
        ),
        *refused(
            no_sizes=lambda _: (),
            a_size_too_many=lambda v: (v,) * (dims + 1),
            floats=lambda v: (float(v),) * dims,
            bools=lambda _: (True,) * dims,
            texts=lambda v: [str(v)] * dims,
        ),
    )


SHAPE = (
    *NEITHER,
    *taken(
        list=list,
        array=np.array,
        deque=deque,
        numpy_in_a_tuple=lambda v: tuple(map(np.int64, v)),
        indices=lambda v: tuple(map(Index, v)),
    ),
    *refused(
        number=lambda v: v[0],
        floats=lambda v: tuple(map(float, v)),
        array_of_floats=lambda v: np.array(v, float),
        one_bool=lambda v: (*v[:-1], True),
        an_axis_too_many=lambda v: (*v, 1),
        an_axis_too_few=lambda v: v[:-1],
        empty=lambda _: (),
        other=lambda v: with_first_size(v, v[0] + 2),
        zero=lambda v: with_first_size(v, 0),
        negative=lambda v: with_first_size(v, -v[0]),
        beyond_int64=lambda v: with_first_size(v, 2**70),
    ),
)

FACTOR = (
    *NEITHER,
    *taken(
        numpy=np.float64, half=np.float16, long=np.longdouble, array_without_axes=np.array, fraction=Fraction
    ),
    *refused(
        decimal=Decimal,
        array=lambda v: np.array([v]),
        list=lambda v: [v],
        beyond_double=lambda _: 10**400,
    ),
)

LAYOUT = (
    *(odd for odd in NEITHER if odd.name != "text"),
    *taken(numpy=np.str_, subclass=Text, enum=as_enum),
    *refused(
        upper=lambda v: v.upper(),
        empty=lambda _: "",
        list=lambda v: [v],
        tuple=lambda v: (v,),
        array=lambda v: np.array([v]),
    ),
)

WORKSPACE = (
    *(odd for odd in NEITHER if odd.name not in ("none", "text", "numpy_text")),
    *taken(
        not_given=lambda _: None,
        zero=lambda _: 0,
        numpy=lambda _: np.int64(0),
        array_without_axes=lambda _: np.array(2**20),
        large=lambda _: 2**62,
        text=lambda _: "64MiB",
        unlimited=lambda _: Text("none"),
        enum=lambda _: as_enum("1MiB"),
    ),
    *refused(
        float=lambda _: 7.0,
        negative=lambda _: -1,
        beyond_int64=lambda _: 2**63,
        unit=lambda _: "8M",
        no_unit=lambda _: 64,
        empty=lambda _: "",
        other_digits=lambda _: "٣MiB",
        list=lambda _: [1],
    ),
)

PLAN = (
    *(odd for odd in NEITHER if odd.name != "none"),
    *refused(
        number=lambda _: 3,
        plan_without_the_kernel=lambda _: Plan(),
        no_file=lambda _: "no such file",
        folder=lambda _: ".",
        empty=lambda _: "",
        nul=lambda _: "a\0b",
        list=lambda _: ["a.plan"],
    ),
)

ARRAY = (
    *NEITHER,
    *taken(
        read_only=read_only,
        subclass=lambda v: v.view(Subclass),
        described=Described,
        dlpack=OnlyDLPack,
    ),
    *refused(
        number=lambda _: np.float32(1),
        list=lambda v: v.tolist(),
        integers=lambda v: v.astype(np.int32),
        other_byte_order=lambda v: v.astype(v.dtype.newbyteorder(">")),
        records=lambda v: v.view([("value", v.dtype)]),
        masked=np.ma.array,
        not_packed=lambda v: np.repeat(v, 2, axis=-1)[..., ::2],
        reversed=lambda v: v[::-1],
        unaligned=unaligned,
        described_unaligned=lambda v: Described(unaligned(v)),
        flat=lambda v: v.reshape(-1),
        without_samples=lambda v: v[:0],
        without_an_axis=lambda v: v[0],
        without_data=lambda v: Described(v, data=LEFT_OUT),
        data_none=lambda v: Described(v, data=None),
        address_0=lambda v: Described(v, data=(0, False)),
        shape_beyond=lambda v: Described(v, shape=with_first_size(v.shape, 2**70)),
        described_masked=lambda v: Described(v, mask=np.ones(v.shape, bool)),
        interface_none=lambda _: type("Odd", (), {"__array_interface__": 7})(),
        interface_of_cuda=lambda _: type("Odd", (), {"__cuda_array_interface__": {}})(),
        dlpack_not_packed=lambda v: OnlyDLPack(np.repeat(v, 2, axis=-1)[..., ::2]),
        dlpack_integers=lambda v: OnlyDLPack(v.astype(np.int32)),
        dlpack_elsewhere=lambda v: OnlyDLPack(v, device=(7, 0)),
        dlpack_no_capsule=lambda v: OnlyDLPack(v, capsule="capsule"),
    ),
)

OUT = (
    *(odd for odd in ARRAY if odd.name not in ("none", "read_only", "dlpack")),
    *refused(
        read_only=read_only,
        described_read_only=lambda v: Described(read_only(v)),
        other_shape=lambda v: np.repeat(v, 2, axis=0),
        other_type=lambda v: v.astype(np.float64 if v.dtype != np.float64 else np.float32),
    ),
)
