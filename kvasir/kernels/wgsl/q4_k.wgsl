// The codes of Q4_K, 0..15: each byte of a piece's 32 holds one of the even sub-block and one of the odd. After k_scales.wgsl.

const BLOCK_BYTES = 144u;

fn codes_of(block: Block, piece: u32, half: u32) -> Codes {
  let nibbles = weights[block.at + 1u + 2u * piece + half];
  let low = vec4<u32>(0x0f0f0f0fu);
  return Codes(nibbles & low, (nibbles >> vec4<u32>(4u)) & low);
}
