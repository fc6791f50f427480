// The codes of Q5_K, 0..31: nibbles as Q4_K's, and bit j of a byte of its own is the fifth bit of sub-block j.
// After k_scales.wgsl.

const BLOCK_BYTES = 176u;

fn codes_of(block: Block, piece: u32, half: u32) -> Codes {
  let fifths = weights[block.at + 1u + half] >> vec4<u32>(2u * piece);
  let nibbles = weights[block.at + 3u + 2u * piece + half];
  let low = vec4<u32>(0x0f0f0f0fu);
  let one = vec4<u32>(0x01010101u);
  let four = vec4<u32>(4u);
  let even = (nibbles & low) | ((fifths & one) << four);
  let odd = ((nibbles >> four) & low) | (((fifths >> vec4<u32>(1u)) & one) << four);
  return Codes(even, odd);
}
