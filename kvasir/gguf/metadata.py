"""The key-value pairs of a GGUF header, parsed lazily.

`gguf.header` walks them once and keeps each value's place. A value becomes a Python object only when it is read, so a
vocabulary of 250,000 tokens that is not used is only skipped. Nothing here interprets a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kvasir.errors import GGUFError
from kvasir.gguf.cursor import ARRAY_MAX_ITEMS, HeaderCursor

KEY_MAX_BYTES = 65_535
PAIRS_MAX = 65_536


class ValueType(IntEnum):
    """The types of metadata values, with the numbers of the GGUF format."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_NUMBER_DTYPES: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("u1"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class StoredValue:
    """The place of a value. `start` is the first byte after its type, `stop` the first byte after the value."""

    value_type: ValueType
    item_type: ValueType | None  # of an array
    n_items: int  # 1 for a plain value
    items_start: int
    start: int
    stop: int


class Metadata(Mapping[str, object]):
    """The pairs of one header: str -> int, float, bool, str or list of these.

    Each access parses the value again, so keep a long list that is needed twice. A missing key raises KeyError.
    """

    def __init__(self, cursor: HeaderCursor, places: Mapping[str, StoredValue]) -> None:
        self._cursor = cursor
        self._places = places

    def __getitem__(self, key: str) -> object:
        place = self._places[key]
        cursor = HeaderCursor(self._cursor.buffer, place.stop, self._cursor.label, place.items_start)
        if place.item_type is ValueType.STRING:
            return cursor.strings(place.n_items, f"{key!r}")
        if place.value_type is ValueType.STRING:
            return cursor.string(f"the value of {key!r}")
        numbers = self._numbers(key, place, cursor)
        return numbers if place.value_type is ValueType.ARRAY else numbers[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def n_items(self, key: str) -> int:
        """Return the number of items of the array under `key` (1 for a plain value), without parsing it."""
        return self._places[key].n_items

    def raw(self, key: str) -> bytes:
        """Return the type and stored bytes of a value: equal for equal values in all files."""
        place = self._places[key]
        return bytes([place.value_type]) + self._cursor.buffer[place.start : place.stop]

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer. Raises GGUFError if it is missing (without a default) or not an integer."""
        if key not in self._places and default is not None:
            return default
        value = self._required(key, "an integer")
        if isinstance(value, bool) or not isinstance(value, int):
            raise GGUFError(f"{self._cursor.label}: {key!r} must be an integer, it is {_shortened(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string. Raises GGUFError if it is missing (without a default) or not a string."""
        if key not in self._places and default is not None:
            return default
        value = self._required(key, "a string")
        if not isinstance(value, str):
            raise GGUFError(f"{self._cursor.label}: {key!r} must be a string, it is {_shortened(value)}")
        return value

    def integers(self, key: str) -> list[int]:
        """Return an array of integers. Raises GGUFError if it is missing or something else."""
        value = self._required(key, "an array of integers")
        if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
            raise GGUFError(f"{self._cursor.label}: {key!r} must be an array of integers, it is {_shortened(value)}")
        return value

    def _required(self, key: str, what: str) -> object:
        if key not in self._places:
            raise GGUFError(f"{self._cursor.label}: the key {key!r} ({what}) is missing")
        return self[key]

    def _numbers(self, key: str, place: StoredValue, cursor: HeaderCursor) -> list[object]:
        number_type = place.item_type or place.value_type
        dtype = _NUMBER_DTYPES[number_type]
        numbers = np.frombuffer(cursor.raw(place.n_items * dtype.itemsize, f"{key!r}"), dtype=dtype)
        if number_type is not ValueType.BOOL:
            return list(numbers.tolist())
        if numbers.size and numbers.max() > 1:
            raise GGUFError(f"{cursor.label}: {key!r} holds a bool of {numbers.max()}; only 0 and 1 are bools")
        return list(numbers.astype(bool).tolist())


def read_metadata(cursor: HeaderCursor, n_pairs: int) -> Metadata:
    """Walk `n_pairs` pairs from the cursor's position and leave the cursor after them. Raises GGUFError."""
    if n_pairs > PAIRS_MAX:
        raise GGUFError(f"{cursor.label}: the header claims {n_pairs} metadata pairs; at most {PAIRS_MAX} are allowed")
    places: dict[str, StoredValue] = {}
    for number in range(n_pairs):
        key = cursor.string(f"metadata key {number}", KEY_MAX_BYTES)
        if key in places:
            raise GGUFError(f"{cursor.label}: the metadata key {key!r} occurs twice")
        value_type = _value_type(cursor, f"the value of {key!r}")
        places[key] = _walk_value(cursor, key, value_type)
    return Metadata(cursor, places)


def _walk_value(cursor: HeaderCursor, key: str, value_type: ValueType) -> StoredValue:
    start = cursor.position
    if value_type is ValueType.ARRAY:
        return _walk_array(cursor, key, start)
    if value_type is ValueType.STRING:
        cursor.skip_string(f"the value of {key!r}")
    else:
        cursor.need(_NUMBER_DTYPES[value_type].itemsize, f"the value of {key!r}")
    return StoredValue(value_type, None, 1, start, start, cursor.position)


def _walk_array(cursor: HeaderCursor, key: str, start: int) -> StoredValue:
    item_type = _value_type(cursor, f"the items of {key!r}")
    if item_type is ValueType.ARRAY:
        raise GGUFError(f"{cursor.label}: {key!r} is an array of arrays, which no known model uses")
    n_items = cursor.u64(f"the length of {key!r}")
    if n_items > ARRAY_MAX_ITEMS:
        raise GGUFError(f"{cursor.label}: {key!r} claims {n_items} items; at most {ARRAY_MAX_ITEMS} are allowed")
    items_start = cursor.position
    if item_type is ValueType.STRING:
        cursor.skip_strings(n_items, f"{key!r}")
    else:
        cursor.need(n_items * _NUMBER_DTYPES[item_type].itemsize, f"{key!r}")
    return StoredValue(ValueType.ARRAY, item_type, n_items, items_start, start, cursor.position)


def _value_type(cursor: HeaderCursor, what: str) -> ValueType:
    number = cursor.u32(f"the type of {what}")
    try:
        return ValueType(number)
    except ValueError:
        raise GGUFError(f"{cursor.label}: {what} has type {number}; the format knows 0 to {max(ValueType)}") from None


def _shortened(value: object) -> str:
    text = repr(value[:4] if isinstance(value, list) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
