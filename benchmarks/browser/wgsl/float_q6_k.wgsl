// Q6_K as floats. After float_matmul.wgsl.

const BLOCK_BYTES = 210u;

fn sub_scale(offset: u32, number: u32) -> f32 {
  let at = offset + 192u + number;
  return f32(bitcast<i32>(weights[at >> 2u] << (24u - (at & 3u) * 8u)) >> 24u);
}

fn eight_of(offset: u32, piece: u32, i: u32) -> Eight {
  let scale = half_at(offset + 208u);
  let shift = (piece & 1u) * 4u;
  let low_at = offset + (piece >> 1u) * 64u + i * 4u;
  let highs = word_at(offset + 128u + (piece >> 1u) * 32u + i * 4u) >> shift;
  let even = ((word_at(low_at) >> shift) & 0x0f0f0f0fu) | ((highs & 0x03030303u) << 4u);
  let odd = ((word_at(low_at + 32u) >> shift) & 0x0f0f0f0fu) | (((highs >> 2u) & 0x03030303u) << 4u);
  let thirty_two = vec4<f32>(32.0);
  let first = scale * sub_scale(offset, piece * 4u + i / 4u);
  let second = scale * sub_scale(offset, piece * 4u + 2u + i / 4u);
  return Eight((floats(even) - thirty_two) * first, (floats(odd) - thirty_two) * second);
}
