// What matvec.wgsl and tiled.wgsl share: the bindings but the weights (their type's file has those), tasks and pairs.
// README.md beside this file says what a host puts into each buffer.

struct Shape {
  n_blocks: u32,
  n_out: u32,
  row_bytes: u32,
  out_stride: u32,
  first_task: u32,
  first_row: u32,
  unused_0: u32,
  unused_1: u32,
}

struct Task {
  weights: u32,
  ew: u32,
  first_pair: u32,
  n_pairs: u32,
  column: u32,
  unused_0: u32,
  unused_1: u32,
  unused_2: u32,
}

@group(0) @binding(1) var<storage, read> inputs: array<vec4<u32>>; // activations
@group(0) @binding(2) var<storage, read_write> outputs: array<u32>; // bits of f32
@group(0) @binding(3) var<storage, read> tasks: array<Task>;
@group(0) @binding(4) var<storage, read> pairs: array<vec2<u32>>; // input row, output row
@group(0) @binding(5) var<uniform> shape: Shape;

const QUADS = 19u; // vec4s of a block of activations
const SUMS = 16u; // the first of two with the sums that belong to minima
const FACTS = 18u;

// Of one block of each input row: its eight multipliers, a nibble each, its shift, and its row's exponent.
struct Facts { multipliers: Uints, shift: Uints, row_exponent: Uints }

// 64 codes of a weight row: sixteen of an even sub-block and the sixteen 32 later, of the odd one.
struct Codes { even: vec4<u32>, odd: vec4<u32> }

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
  return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

// Where a task's pair begins in the inputs. Past the last pair it is the last: computed, never stored.
fn input_start(task: Task, number: u32) -> u32 {
  let pair = task.first_pair + min(number, task.n_pairs - 1u);
  return pairs[pair].x * shape.n_blocks * QUADS;
}

fn store_one(task: Task, number: u32, row: u32, value: u32) {
  if (number < task.n_pairs && row < shape.n_out) {
    outputs[pairs[task.first_pair + number].y * shape.out_stride + task.column + row] = value;
  }
}

fn block_of(task: Task, row: u32, block: u32) -> Block {
  return open_block(task.weights + row * shape.row_bytes + block * BLOCK_BYTES, task.ew);
}

// Multipliers 2 piece and 2 piece + 1.
fn even_multiplier(facts: Facts, piece: u32) -> Ints {
  return bitcast<Ints>((facts.multipliers >> Uints(8u * piece)) & Uints(15u));
}

fn odd_multiplier(facts: Facts, piece: u32) -> Ints {
  return bitcast<Ints>((facts.multipliers >> Uints(8u * piece + 4u)) & Uints(15u));
}

fn output_bits(acc: Wide, row_exponent: Uints, ew: u32) -> Uints {
  return round_output(acc, bitcast<Ints>(row_exponent) + Ints(i32(ew) - 184));
}
