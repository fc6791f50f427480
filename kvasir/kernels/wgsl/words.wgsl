// Weights whose blocks begin at any even byte: Q6_K and Q8_0. One of their files follows.

@group(0) @binding(0) var<storage, read> weights: array<u32>;

fn half_at(offset: u32) -> u32 {
  return (weights[offset >> 2u] >> ((offset & 2u) * 8u)) & 0xffffu;
}

fn word_at(offset: u32) -> u32 {
  return half_at(offset) | (half_at(offset + 2u) << 16u);
}

// Sixteen bytes from an even offset.
fn quad_at(offset: u32) -> vec4<u32> {
  let at = offset >> 2u;
  let words = vec4<u32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
  if ((offset & 2u) == 0u) {
    return words;
  }
  let next = vec4<u32>(words.yzw, weights[at + 4u]);
  return (words >> vec4<u32>(16u)) | (next << vec4<u32>(16u));
}
