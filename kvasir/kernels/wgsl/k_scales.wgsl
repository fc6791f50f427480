// What Q4_K and Q5_K share: a block of whole vec4s that begins with d, dmin, and twelve bytes of 6-bit scales and minima.
// q4_k.wgsl or q5_k.wgsl follows and adds the codes.

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;

struct Block {
  at: u32, // in vec4s
  scales: vec2<u32>, // eight sub-scales, a byte each
  mins: vec2<u32>,
  scale: i32,
  min_scale: i32,
}

struct Sum { scaled: Ints, mins: Ints }

fn open_block(offset: u32, ew: u32) -> Block {
  let head = weights[offset >> 4u];
  let high_scales = (head.w & 0x0f0f0f0fu) | ((head.y >> 2u) & 0x30303030u);
  let high_mins = ((head.w >> 4u) & 0x0f0f0f0fu) | ((head.z >> 2u) & 0x30303030u);
  return Block(
    offset >> 4u,
    vec2<u32>(head.y & 0x3f3f3f3fu, high_scales),
    vec2<u32>(head.z & 0x3f3f3f3fu, high_mins),
    fixed_scale(head.x & 0xffffu, ew),
    fixed_scale(head.x >> 16u, ew),
  );
}

fn bytes_of(word: u32) -> vec4<i32> {
  return vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}

// The scales of a piece's four groups of 16: both of the even sub-block, both of the odd one.
fn piece_scales(block: Block, piece: u32) -> vec4<i32> {
  let word = select(block.scales.x, block.scales.y, piece > 1u) >> ((piece & 1u) * 16u);
  let even = i32(word & 255u);
  let odd = i32((word >> 8u) & 255u);
  return vec4<i32>(even, even, odd, odd);
}

fn add_dots(sum: Sum, scales: vec2<i32>, first: Ints, second: Ints, multiplier: Ints) -> Sum {
  return Sum(sum.scaled + (first + second) * multiplier * Ints(scales.x), sum.mins);
}

fn add_mins(sum: Sum, block: Block, low: Quads, high: Quads) -> Sum {
  let mins = int_dots(bytes_of(block.mins.x), low) + int_dots(bytes_of(block.mins.y), high);
  return Sum(sum.scaled, sum.mins + mins);
}

fn block_value(sum: Sum, block: Block) -> Wide {
  let scaled = wide_multiply(Ints(block.scale), sum.scaled);
  return wide_add(scaled, wide_negate(wide_multiply(Ints(block.min_scale), sum.mins)));
}
