// Step 5 of docs/reference/kx1.md: silu(gate) * up on f32 bits, in u32. quantise.wgsl follows and calls `row_value`.

fn silu_mul(gate: u32, up: u32) -> u32 {
  let gate_field = (gate >> 23u) & 255u;
  let up_field = (up >> 23u) & 255u;
  let is_negative = (gate >> 31u) == 1u;
  let gate_mantissa = (gate & 0x7fffffu) | 0x800000u;
  let up_mantissa = (up & 0x7fffffu) | 0x800000u;
  if (gate_field == 0u || up_field == 0u || (is_negative && gate_field > 131u)) {
    return 0u;
  }
  var x = 0xffffffu; // |gate|, nineteen bits after the point
  if (gate_field <= 131u) {
    x = gate_mantissa >> min(131u - gate_field, 31u);
  }
  let y = (x >> 12u) * 378194u + (((x & 4095u) * 378194u) >> 12u); // times log2(e)
  let n = y >> 25u;
  let f = (y >> 9u) & 65535u;
  var power = 449u; // becomes 2^-f, sixteen bits after the point
  power = 3489u - ((f * power) >> 16u);
  power = 15692u - ((f * power) >> 16u);
  power = 45419u - ((f * power) >> 16u);
  power = 65535u - ((f * power) >> 16u);
  let sigmoid = 0xffffffffu / (65536u + (power >> min(n, 31u)));
  let factor = select(sigmoid, (power * sigmoid) >> 16u, is_negative);
  var count = select(0u, n, is_negative);
  var product = (gate_mantissa >> 8u) * factor;
  for (var turn = 0u; turn < 2u; turn++) {
    let is_low = product < 0x80000000u;
    product <<= select(0u, 1u, is_low);
    count += select(0u, 1u, is_low);
  }
  var mantissa = (product >> 16u) * (up_mantissa >> 8u);
  if (mantissa < 0x80000000u) {
    mantissa <<= 1u;
    count += 1u;
  }
  return float_bits((gate ^ up) & 0x80000000u, i32(gate_field + up_field) - 126 - i32(count), mantissa);
}

// +0 when too small, the largest finite value when too large; the mantissa's bits 8 to 30 otherwise.
fn float_bits(sign: u32, field: i32, mantissa: u32) -> u32 {
  if (field <= 0) {
    return 0u;
  }
  if (field >= 255) {
    return sign | 0x7f7fffffu;
  }
  return sign | (u32(field) << 23u) | ((mantissa >> 8u) & 0x7fffffu);
}

// Value `column` of the hidden row of a slot, whose inputs are gate's outputs, then up's.
fn row_value(slot: u32, column: u32) -> u32 {
  let d_ff = shape.n_blocks * 256u;
  let gate_at = slot * 2u * d_ff + column;
  return silu_mul(inputs[gate_at], inputs[gate_at + d_ff]);
}
