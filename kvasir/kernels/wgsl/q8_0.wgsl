// Q8_0: eight quant blocks of 34 bytes, each a scale and 32 signed codes; their products are added as 64-bit integers.
// After words.wgsl.

const BLOCK_BYTES = 272u;
const QUANT_BYTES = 34u;

struct Block { at: u32, ew: u32 }

struct Sum { value: Wide }

fn open_block(offset: u32, ew: u32) -> Block {
  return Block(offset, ew);
}

fn codes_of(block: Block, piece: u32, half: u32) -> Codes {
  let even_at = block.at + 2u * piece * QUANT_BYTES + 2u + half * 16u;
  return Codes(quad_at(even_at), quad_at(even_at + QUANT_BYTES));
}

// The scales of a piece's two quant blocks, each twice.
fn piece_scales(block: Block, piece: u32) -> vec4<i32> {
  let at = block.at + 2u * piece * QUANT_BYTES;
  let even = fixed_scale(half_at(at), block.ew);
  let odd = fixed_scale(half_at(at + QUANT_BYTES), block.ew);
  return vec4<i32>(even, even, odd, odd);
}

fn add_dots(sum: Sum, scales: vec2<i32>, first: Ints, second: Ints, multiplier: Ints) -> Sum {
  return Sum(wide_add(sum.value, wide_multiply(Ints(scales.x), (first + second) * multiplier)));
}

fn add_mins(sum: Sum, block: Block, low: Quads, high: Quads) -> Sum {
  return sum;
}

fn block_value(sum: Sum, block: Block) -> Wide {
  return sum.value;
}
