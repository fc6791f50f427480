"""KX1 one value at a time in Python's own integers: slow, and as close to the words of docs/reference/kx1.md as can be.

Called by the tests of the numpy oracle. It shares no code with `kvasir`, so that a misreading would have to be
made twice.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 256


@dataclass
class Block:
    codes: list[int]
    multipliers: list[int]
    exponent: int


def mantissa(bits: int) -> int:
    return (bits & 0x7FFFFF) | 0x800000 if (bits >> 23) & 255 else 0


def quantise_block(bits: list[int]) -> Block:
    magnitudes = [b & 0x7FFFFFFF for b in bits]
    largest = max(magnitudes)
    ex = largest >> 23
    s = 13 + (1 if mantissa(largest) > 15 * 127 * 2**13 else 0)
    codes, multipliers = [], []
    for j in range(8):
        mine = magnitudes[32 * j : 32 * j + 32]
        top = max(mine)
        shifted = mantissa(top) >> min(ex - (top >> 23), 31)
        a = max(1, ((shifted + (127 << s) - 1) >> s) // 127)
        inverse = 524288 // a
        multipliers.append(a)
        for k, magnitude in enumerate(mine):
            product = (mantissa(magnitude) >> min(8 + ex - (magnitude >> 23), 31)) * inverse
            assert product + (1 << (s + 10)) < 1 << 32
            q = (product + (1 << (s + 10))) >> (s + 11)
            codes.append(-q if bits[32 * j + k] >> 31 else q)
    return Block(codes, multipliers, ex + s if ex else 0)


def quantise(bits: list[int]) -> list[Block]:
    return [quantise_block(bits[i : i + BLOCK]) for i in range(0, len(bits), BLOCK)]


def packed(blocks: list[Block]) -> bytes:
    out = bytearray()
    for block in blocks:
        out += bytes(code & 255 for code in block.codes)
        out += bytes(block.multipliers[2 * i] | block.multipliers[2 * i + 1] << 4 for i in range(4))
        out.append(block.exponent - 13 if block.exponent else 0)
    return bytes(out)


def half_exponent(half: int) -> int:
    field = (half >> 10) & 31
    assert field != 31
    return max(field, 1) - 1


def fixed(half: int, ew: int) -> int:
    hidden = 1024 if (half >> 10) & 31 else 0
    magnitude = (((half & 1023) | hidden) << 10) >> min(ew - half_exponent(half), 31)
    return -magnitude if half >> 15 else magnitude


def half_at(data: bytes, offset: int) -> int:
    return data[offset] | data[offset + 1] << 8


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


BLOCK_BYTES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_0": 272}
SCALE_OFFSETS = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": tuple(range(0, 272, 34))}


def weight_exponent(kind: str, data: bytes) -> int:
    size = BLOCK_BYTES[kind]
    return max(
        half_exponent(half_at(data, start + offset))
        for start in range(0, len(data), size)
        for offset in SCALE_OFFSETS[kind]
    )


def sub_scale(field: bytes, j: int) -> int:
    return field[j] & 63 if j < 4 else (field[j + 4] & 15) | (field[j - 4] >> 6) << 4


def sub_min(field: bytes, j: int) -> int:
    return field[j + 4] & 63 if j < 4 else (field[j + 4] >> 4) | (field[j] >> 6) << 4


def code_4(data: bytes, k: int) -> int:
    byte = data[16 + 32 * (k // 64) + k % 32]
    return byte >> 4 if k // 32 % 2 else byte & 15


def code_5(data: bytes, k: int) -> int:
    byte = data[48 + 32 * (k // 64) + k % 32]
    return (byte >> 4 if k // 32 % 2 else byte & 15) + 16 * (data[16 + k % 32] >> (k // 32) & 1)


def code_6(data: bytes, k: int) -> int:
    half, group, lane = k // 128, k // 32 % 4, k % 32
    low = data[64 * half + 32 * (group % 2) + lane]
    high = data[128 + 32 * half + lane] >> (2 * group) & 3
    return (low >> 4 if group > 1 else low & 15) + 16 * high - 32


def block_value(kind: str, data: bytes, ew: int, x: Block) -> int:
    if kind == "Q8_0":
        total = 0
        for j in range(8):
            quant = data[34 * j : 34 * j + 34]
            dot = sum(signed(quant[2 + i]) * x.codes[32 * j + i] for i in range(32))
            total += fixed(half_at(quant, 0), ew) * x.multipliers[j] * dot
        return total
    if kind == "Q6_K":
        total = 0
        for j in range(16):
            dot = sum(code_6(data, k) * x.codes[k] for k in range(16 * j, 16 * j + 16))
            total += signed(data[192 + j]) * x.multipliers[j // 2] * dot
        assert abs(total) < 1 << 31
        return fixed(half_at(data, 208), ew) * total
    code = code_4 if kind == "Q4_K" else code_5
    scaled = minima = 0
    for j in range(8):
        span = range(32 * j, 32 * j + 32)
        scaled += sub_scale(data[4:16], j) * x.multipliers[j] * sum(code(data, k) * x.codes[k] for k in span)
        minima += sub_min(data[4:16], j) * x.multipliers[j] * sum(x.codes[k] for k in span)
    assert max(abs(scaled), abs(minima)) < 1 << 31
    return fixed(half_at(data, 0), ew) * scaled - fixed(half_at(data, 2), ew) * minima


def rounded(acc: int, exponent: int) -> int:
    """f32 bits of acc * 2^exponent, by exact integer comparison with both neighbours."""
    sign, rest = (0x80000000 if acc < 0 else 0), abs(acc)
    if rest == 0:
        return 0
    unit = rest.bit_length() - 24  # the last of 24 bits stands for 2^unit
    if unit > 0:
        below, left = divmod(rest, 1 << unit)
        twice = 2 * left
        if twice > 1 << unit or (twice == 1 << unit and below % 2):
            below += 1
    else:
        below = rest << -unit
    if below == 1 << 24:
        below, unit = below // 2, unit + 1
    field = unit + exponent + 150
    if field <= 0:
        return 0
    return sign | (0x7F7FFFFF if field > 254 else (field << 23) | (below - (1 << 23)))


def matmul_row(kind: str, data: bytes, ew: int, x: list[Block]) -> int:
    """f32 bits of one output: `data` is one matrix row."""
    top = max(block.exponent for block in x)
    size = BLOCK_BYTES[kind]
    acc = 0
    for b, block in enumerate(x):
        value = block_value(kind, data[size * b : size * b + size], ew, block)
        acc += value >> min(top - block.exponent, 63)
    assert abs(acc) < 1 << 63
    return rounded(acc, ew - 34 + top - 150)


def silu_mul(g: int, u: int) -> int:
    """f32 bits of silu(g) * u."""
    negative, g_field, u_field = g >> 31, (g >> 23) & 255, (u >> 23) & 255
    if not g_field or not u_field or (negative and g_field > 131):
        return 0
    g_mantissa, u_mantissa = (g & 0x7FFFFF) | 0x800000, (u & 0x7FFFFF) | 0x800000
    fixed_g = 0xFFFFFF if g_field > 131 else g_mantissa >> min(131 - g_field, 31)
    exponent = (fixed_g >> 12) * 378194 + ((fixed_g & 4095) * 378194 >> 12)
    whole, fraction = exponent >> 25, exponent >> 9 & 0xFFFF
    power = 449
    for c in (3489, 15692, 45419, 65535):
        power = c - (fraction * power >> 16)
    sigmoid = 0xFFFFFFFF // (65536 + (power >> min(whole, 31)))
    halvings = 0
    if negative:
        sigmoid, halvings = power * sigmoid >> 16, whole
    product = (g_mantissa >> 8) * sigmoid
    while product < 1 << 31:
        product, halvings = product << 1, halvings + 1
    product = (product >> 16) * (u_mantissa >> 8)
    while product < 1 << 31:
        product, halvings = product << 1, halvings + 1
    field = g_field + u_field - 126 - halvings
    if field <= 0:
        return 0
    return ((g ^ u) & 0x80000000) | (0x7F7FFFFF if field > 254 else (field << 23) | (product >> 8 & 0x7FFFFF))
