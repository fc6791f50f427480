// Q4_K as floats. After float_matmul.wgsl.

const BLOCK_BYTES = 144u;

// Scale and minimum of sub-block j.
fn scale_and_min(offset: u32, j: u32) -> vec2<f32> {
  let at = offset >> 2u;
  let shift = (j & 3u) * 8u;
  let first = weights[at + 1u] >> shift;
  let second = weights[at + 2u] >> shift;
  let third = weights[at + 3u] >> shift;
  var scale = first & 63u;
  var least = second & 63u;
  if (j >= 4u) {
    scale = (third & 15u) | ((first >> 2u) & 48u);
    least = ((third >> 4u) & 15u) | ((second >> 2u) & 48u);
  }
  return unpack2x16float(weights[at]) * vec2<f32>(f32(scale), f32(least));
}

fn eight_of(offset: u32, piece: u32, i: u32) -> Eight {
  let word = weights[(offset >> 2u) + 4u + piece * 8u + i];
  let even = scale_and_min(offset, 2u * piece);
  let odd = scale_and_min(offset, 2u * piece + 1u);
  return Eight(
    floats(word & 0x0f0f0f0fu) * even.x - vec4<f32>(even.y),
    floats((word >> 4u) & 0x0f0f0f0fu) * odd.x - vec4<f32>(odd.y),
  );
}
