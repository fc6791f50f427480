// Q6_K: codes of -32..31 in nibbles and pairs of bits, and a signed sub-scale for each sixteen. After words.wgsl.

const BLOCK_BYTES = 210u;

struct Block { at: u32, scale: i32 }

struct Sum { scaled: Ints }

fn open_block(offset: u32, ew: u32) -> Block {
  return Block(offset, fixed_scale(half_at(offset + 208u), ew));
}

// Codes of 0..63, four a word, each less 32: six bits with the sign moved up.
fn less_32(codes: vec4<u32>) -> vec4<u32> {
  let flipped = codes ^ vec4<u32>(0x20202020u);
  let signs = flipped & vec4<u32>(0x20202020u);
  return flipped | (signs << vec4<u32>(1u)) | (signs << vec4<u32>(2u));
}

fn codes_of(block: Block, piece: u32, half: u32) -> Codes {
  let low_at = block.at + (piece >> 1u) * 64u + half * 16u;
  let nibble = vec4<u32>((piece & 1u) * 4u);
  let low = vec4<u32>(0x0f0f0f0fu);
  let highs = quad_at(block.at + 128u + (piece >> 1u) * 32u + half * 16u) >> nibble;
  let two = vec4<u32>(0x03030303u);
  let four = vec4<u32>(4u);
  let even = ((quad_at(low_at) >> nibble) & low) | ((highs & two) << four);
  let odd = ((quad_at(low_at + 32u) >> nibble) & low) | (((highs >> vec4<u32>(2u)) & two) << four);
  return Codes(less_32(even), less_32(odd));
}

// The scales of a piece's four groups of 16.
fn piece_scales(block: Block, piece: u32) -> vec4<i32> {
  let word = bitcast<i32>(word_at(block.at + 192u + piece * 4u));
  return (vec4<i32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}

fn add_dots(sum: Sum, scales: vec2<i32>, first: Ints, second: Ints, multiplier: Ints) -> Sum {
  return Sum(sum.scaled + (first * Ints(scales.x) + second * Ints(scales.y)) * multiplier);
}

fn add_mins(sum: Sum, block: Block, low: Quads, high: Quads) -> Sum {
  return sum;
}

fn block_value(sum: Sum, block: Block) -> Wide {
  return wide_multiply(Ints(block.scale), sum.scaled);
}
