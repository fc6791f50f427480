"""The header reader against gguf-py, split sets, offsets above 4 GiB, and files made to break it."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import GGUFError, UnsupportedModelError
from kvasir.gguf.header import HeaderValue, TensorInfo, encode_header, read_header
from kvasir.gguf.index import GGUFIndex
from tests.unit.moe_files import CLEAR_ERRORS, ModelSpec, read_everything, write_model

# ---- sound files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_it_reads_what_gguf_py_reads(tmp_path: Path, alignment: int | None) -> None:
    path = write_model(tmp_path / "m.gguf", ModelSpec(alignment=alignment, down_types=(QuantType.F32, QuantType.F16)))
    reader = gguf.GGUFReader(path)
    with GGUFIndex.open(path) as index:
        theirs = {key: f.contents() for key, f in reader.fields.items() if not key.startswith("GGUF.")}
        assert dict(index.metadata) == theirs
        assert list(index.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = index.tensors[tensor.name]
            assert info.shape == tuple(int(dim) for dim in reversed(tensor.shape))
            assert (info.quant_type, info.n_bytes) == (tensor.tensor_type, tensor.n_bytes)
            assert info.offset == tensor.data_offset
            assert index.bytes_of(tensor.name).tobytes() == tensor.data.tobytes()


def test_metadata_values_have_plain_types(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "x")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -5)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_int32("i32", -7)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -(1 << 62))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_array("bools", [True, False])
    writer.add_array("words", ["", "a", "äöü", "x" * 300])
    writer.add_array("floats", [0.5, -2.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFIndex.open(tmp_path / "m.gguf") as index:
        metadata = dict(index.metadata)
        assert metadata == {
            "general.architecture": "x",
            **{"u8": 200, "i8": -5, "u16": 60_000, "i16": -30_000, "i32": -7, "u64": 1 << 63, "i64": -(1 << 62)},
            **{"f64": 0.1, "yes": True, "bools": [True, False], "words": ["", "a", "äöü", "x" * 300]},
            "floats": [0.5, -2.0],
        }
        assert {key: type(value) for key, value in metadata.items() if not isinstance(value, list)} == {
            "general.architecture": str,
            **dict.fromkeys(("u8", "i8", "u16", "i16", "i32", "u64", "i64"), int),
            "f64": float,
            "yes": bool,
        }
        assert index.metadata.n_items("words") == 4
        with pytest.raises(GGUFError, match="'u8' must be a string, it is 200"):
            index.metadata.text("u8")
        with pytest.raises(GGUFError, match="'yes' must be an integer, it is True"):
            index.metadata.integer("yes")
        with pytest.raises(GGUFError, match=r"'nothing'.*is missing"):
            index.metadata.integer("nothing")
        with pytest.raises(GGUFError, match="'bools' must be an array of integers"):
            index.metadata.integers("bools")


def test_version_2_is_the_same_format(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    read_everything(path)


@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.F16, QuantType.BF16])
def test_values_are_f32_in_shape(tmp_path: Path, quant_type: QuantType) -> None:
    values = np.random.default_rng(1).standard_normal((3, 32), dtype=np.float32)
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "x")
    writer.add_tensor("t", gguf.quantize(values, quant_type), raw_dtype=quant_type)
    writer.add_tensor("q", gguf.quantize(values, QuantType.Q8_0), raw_dtype=QuantType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFIndex.open(tmp_path / "m.gguf") as index:
        read = index.values("t")
        assert read.dtype == np.float32
        assert np.array_equal(read, gguf.dequantize(gguf.quantize(values, quant_type), quant_type).reshape(3, 32))
        assert (index.matrix("q").n_out, index.matrix("q").n_in) == (3, 32)
        with pytest.raises(GGUFError, match="'q' is Q8_0"):
            index.values("q")
        with pytest.raises(GGUFError, match="tensor 'none' is missing"):
            index.values("none")


def test_views_are_read_only_and_outlive_the_index(tmp_path: Path) -> None:
    with GGUFIndex.open(write_model(tmp_path / "m.gguf")) as index:
        view = index.bytes_of("output_norm.weight")
        before = view.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert view.tobytes() == before
    with pytest.raises(GGUFError, match="closed"):
        index.bytes_of("output_norm.weight")


def test_offsets_far_above_4_gib(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "x")
    n_rows = 5 << 20
    writer.add_tensor_info("big", (n_rows, 1024), np.dtype(np.float32), n_rows * 4096)
    writer.add_tensor_info("last", (2, 4), np.dtype(np.float32), 32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    written = np.arange(8, dtype=np.float32)
    data_start = -(-path.stat().st_size // 32) * 32
    with path.open("r+b") as file:
        file.seek(data_start + n_rows * 4096)
        file.write(written.tobytes())
    with GGUFIndex.open(path) as index:
        assert index.tensors["last"].offset > 20 << 30
        assert np.array_equal(index.values("last"), written.reshape(2, 4))


# ---- split sets --------------------------------------------------------------------------------------------------


def test_any_part_opens_the_whole_split_set(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf")
    write_model(tmp_path / "split.gguf", ModelSpec(tensors_per_part=5))
    parts = sorted(tmp_path.glob("split-*-of-*.gguf"))
    assert len(parts) > 2
    with GGUFIndex.open(whole) as one:
        for given_part in parts:
            with GGUFIndex.open(given_part) as index:
                assert index.parts == tuple(parts)
                assert index.n_bytes == sum(part.stat().st_size for part in parts)
                assert index.metadata["general.name"] == "tiny"
                assert set(index.tensors) == set(one.tensors)
                assert all(np.array_equal(index.bytes_of(name), one.bytes_of(name)) for name in one.tensors)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_model(tmp_path / "m.gguf", ModelSpec(tensors_per_part=5))
    lost = sorted(tmp_path.glob("*.gguf"))[1]
    lost.unlink()
    with pytest.raises(GGUFError, match=f"{lost.name}: part 2 of .* is missing"):
        GGUFIndex.open(first)


def test_a_part_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", ModelSpec(tensors_per_part=5))
    parts = sorted(tmp_path.glob("*.gguf"))
    alone = parts[0].rename(tmp_path / "model.gguf")
    with pytest.raises(GGUFError, match="must end in -00001-of-"):
        GGUFIndex.open(alone)


def test_swapped_parts_and_parts_of_other_models_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", ModelSpec(tensors_per_part=5))
    parts = sorted(tmp_path.glob("*.gguf"))
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(GGUFError, match=r"its metadata says split\.no 2"):
        GGUFIndex.open(parts[0])
    parts[1].write_bytes(second)
    (tmp_path / "other").mkdir()
    write_model(tmp_path / "other" / "m.gguf", ModelSpec(tensors_per_part=7, n_layer=4))
    others = sorted((tmp_path / "other").glob("*.gguf"))
    assert len(others) == len(parts)
    parts[1].write_bytes(others[1].read_bytes())
    with pytest.raises(GGUFError, match=r"in an earlier part too|split\.tensors\.count"):
        GGUFIndex.open(parts[0])


def test_tensors_that_the_split_set_should_have_are_counted(tmp_path: Path) -> None:
    for number in range(2):
        counts: dict[str, HeaderValue] = {"split.no": number, "split.count": 2, "split.tensors.count": 3}
        info = TensorInfo(f"t{number}", (8,), QuantType.F32, 0, 0, 32)
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(encode_header(counts, [info]) + bytes(32))
    with pytest.raises(GGUFError, match=r"split\.tensors\.count is 3, but the 2 parts hold 2 tensors"):
        GGUFIndex.open(tmp_path / "m-00002-of-00002.gguf")


# ---- files that changed, are none, or are hostile ----------------------------------------------------------------


def test_a_file_truncated_while_open_is_noticed_before_a_view_is_given(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with GGUFIndex.open(path) as index:
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(GGUFError, match="was truncated"):
            index.bytes_of("token_embd.weight")


def test_what_is_no_model_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="No such file"):
        GGUFIndex.open(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFIndex.open(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFIndex.open(tmp_path / "pipe.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match="empty"):
        GGUFIndex.open(tmp_path / "empty.gguf")
    (tmp_path / "zip.gguf").write_bytes(b"PK\3\4" + bytes(64))
    with pytest.raises(GGUFError, match="not a GGUF file"):
        GGUFIndex.open(tmp_path / "zip.gguf")


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _header(
    pairs: list[bytes], tensors: list[bytes], *, n_pairs: int | None = None, n_tensors: int | None = None
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
    return b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(pairs) + b"".join(tensors)


def _array(key: bytes, item_type: int, n_items: int, items: bytes = b"") -> bytes:
    return _text(key) + struct.pack("<IIQ", 9, item_type, n_items) + items


def _tensor(name: bytes, dims: list[int], quant_type: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    n_dims = len(dims) if n_dims is None else n_dims
    return _text(name) + struct.pack("<I", n_dims) + struct.pack(f"<{len(dims)}QIQ", *dims, quant_type, offset)


HUGE = (1 << 64) - 1
HOSTILE = {
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0) + bytes(8), "version 1 is not supported"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4 is not supported"),
    "tensor count": (_header([], [], n_tensors=HUGE), "tensors; at most"),
    "pair count": (_header([], [], n_pairs=HUGE), "metadata pairs; at most"),
    "pairs not there": (_header([], [], n_pairs=60_000), "metadata key 0 at byte 24 needs 8"),
    "key length": (_header([struct.pack("<Q", HUGE)], []), "metadata key 0 claims"),
    "key length inside limits": (
        _header([struct.pack("<Q", 60_000) + b"a"], []),
        "needs 60000 bytes, but the file ends",
    ),
    "key not utf-8": (_header([_text(b"\xff") + struct.pack("<II", 4, 1)], []), "metadata key 0 is not UTF-8"),
    "key twice": (_header([_text(b"k") + struct.pack("<II", 4, 1)] * 2, []), "key 'k' occurs twice"),
    "value type": (_header([_text(b"k") + struct.pack("<II", 13, 1)], []), "has type 13"),
    "string length": (_header([_text(b"k") + struct.pack("<IQ", 8, 1 << 62)], []), "the value of 'k' claims"),
    "array of arrays": (_header([_array(b"k", 9, 1, struct.pack("<IQ", 9, 1) * 500)], []), "array of arrays"),
    "array count": (_header([_array(b"k", 4, HUGE)], []), "claims 18446744073709551615 items"),
    "array not there": (_header([_array(b"k", 4, 1 << 20, bytes(64))], []), "needs 4194304 bytes"),
    "strings not there": (_header([_array(b"k", 8, 1 << 20, bytes(64))], []), "the header ends in number 8"),
    "array string length": (_header([_array(b"k", 8, 3, struct.pack("<QQQ", 0, HUGE, 0))], []), "ends in number 2"),
    "last array string": (
        _header([_array(b"k", 8, 1, struct.pack("<Q", 1 << 50))], []),
        "passes the end of the header",
    ),
    "alignment 0": (_header([_text(b"general.alignment") + struct.pack("<II", 4, 0)], []), "alignment is 0"),
    "alignment 48": (_header([_text(b"general.alignment") + struct.pack("<II", 4, 48)], []), "alignment is 48"),
    "alignment text": (_header([_text(b"general.alignment") + struct.pack("<I", 8) + _text(b"x")], []), "an integer"),
    "no dimensions": (_header([], [_tensor(b"t", [], n_dims=0)]), "has 0 dimensions"),
    "many dimensions": (_header([], [_tensor(b"t", [1] * 5)]), "has 5 dimensions"),
    "huge dimension count": (_header([], [_tensor(b"t", [1], n_dims=0xFFFFFFFF)]), "has 4294967295 dimensions"),
    "dimension 0": (_header([], [_tensor(b"t", [0])]), "all must be above 0"),
    "dimension overflow": (_header([], [_tensor(b"t", [1 << 62] * 4)]), "would have"),
    "wrapping product": (_header([], [_tensor(b"t", [1 << 32, 1 << 32])]), "would have"),
    "broken block": (_header([], [_tensor(b"t", [33], quant_type=8)]), "multiple of 32 .a Q8_0 block"),
    "unknown type": (_header([], [_tensor(b"t", [32], quant_type=999)]), "unknown ggml type 999"),
    "removed type": (_header([], [_tensor(b"t", [32], quant_type=4)]), "unknown ggml type 4"),
    "outside": (_header([], [_tensor(b"t", [32], offset=1 << 40)]), "it is truncated"),
    "offset overflow": (_header([], [_tensor(b"t", [32], offset=HUGE - 31)]), "it is truncated"),
    "unaligned": (_header([], [_tensor(b"t", [8], offset=4)]) + bytes(96), "not on a multiple of 32"),
    "overlap": (_header([], [_tensor(b"a", [16]), _tensor(b"b", [8], offset=32)]) + bytes(160), "'a' and 'b' overlap"),
    "tensor twice": (_header([], [_tensor(b"t", [8])] * 2) + bytes(160), "'t' occurs twice"),
    "long name": (_header([], [_tensor(b"t" * 300, [8])]) + bytes(160), "claims 300 bytes"),
    "split name": (
        _header(
            [_text(b"split.count") + struct.pack("<II", 4, HUGE >> 32), _text(b"split.no") + struct.pack("<II", 4, 0)],
            [],
        ),
        "must end in",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused_at_once(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises((GGUFError, UnsupportedModelError), match=message):
            GGUFIndex.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_huge_file_of_zeros_cannot_make_it_loop_for_long(tmp_path: Path) -> None:
    """In a sparse file every claim fits into the file, so only the fixed limits stop a hostile header."""
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 3))
        for number in range(3):
            file.write(_array(b"key %d" % number, 8, 1 << 22))
            file.seek(8 << 22, os.SEEK_CUR)
        file.truncate(1 << 40)
    with pytest.raises(GGUFError, match="'key 2' brings the header above 8388608 array strings"):
        GGUFIndex.open(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _array(b"k", 8, 1, struct.pack("<Q", 1 << 39)))
    os.truncate(path, 1 << 40)
    with pytest.raises(GGUFError, match="passes the end of the header at 268435456"):
        GGUFIndex.open(path)


def test_a_bool_of_2_and_broken_utf8_are_found_when_they_are_read() -> None:
    pairs = [_array(b"flags", 7, 2, b"\1\2"), _array(b"words", 8, 2, _text(b"ok") + _text(b"\xc3"))]
    data = _header(pairs, [])
    metadata = read_header(data, len(data), "m").metadata
    with pytest.raises(GGUFError, match="a bool of 2"):
        metadata["flags"]
    with pytest.raises(GGUFError, match="string 1 of 'words' is not UTF-8"):
        metadata["words"]
    with pytest.raises(KeyError):
        metadata["none"]


# ---- fuzzing -----------------------------------------------------------------------------------------------------

SMALL = ModelSpec(n_layer=1, n_expert=2, d_model=32, d_ff=32, n_vocab=6)


def _read_header_of(data: bytes) -> None:
    header = read_header(data, len(data), "fuzzed")
    for key in header.metadata:
        header.metadata[key]


def test_every_truncation_gives_a_clear_error(tmp_path: Path) -> None:
    data = write_model(tmp_path / "m.gguf", SMALL).read_bytes()
    header = read_header(data, len(data), "m")
    for n_bytes in range(header.data_start):
        with pytest.raises(GGUFError):
            _read_header_of(data[:n_bytes])
    last = max(info.offset + info.n_bytes for info in header.tensors)
    for n_bytes in range(header.data_start, last, 97):
        with pytest.raises(GGUFError, match="truncated"):
            _read_header_of(data[:n_bytes])


def test_every_changed_header_byte_reads_or_gives_a_clear_error(tmp_path: Path) -> None:
    data = bytearray(write_model(tmp_path / "m.gguf", SMALL).read_bytes())
    n_refused = 0
    for place in range(read_header(bytes(data), len(data), "m").data_start):
        for flip in (0x01, 0x80, 0xFF):
            data[place] ^= flip
            try:
                _read_header_of(bytes(data))
            except CLEAR_ERRORS:
                n_refused += 1
            data[place] ^= flip
    assert n_refused > 1000


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("fuzz") / "m.gguf", SMALL).read_bytes()


@settings(max_examples=120, deadline=None)
@given(
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6),
    cut=st.booleans(),
)
def test_a_model_with_random_damage_reads_or_gives_a_clear_error(
    small_file: bytes, tmp_path_factory: pytest.TempPathFactory, places: list[tuple[float, int]], cut: bool
) -> None:
    data = bytearray(small_file)
    for where, flip in places:
        data[int(where * len(data))] ^= flip
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(data[: int(places[0][0] * len(data))] if cut else data)
    try:
        read_everything(path)
    except CLEAR_ERRORS as error:
        assert str(error)
