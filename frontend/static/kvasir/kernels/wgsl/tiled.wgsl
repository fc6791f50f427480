// A matrix times up to 32 input rows of one expert, for many pairs: a workgroup computes 32 weight rows times 32 pairs,
// an invocation four of each. The codes of 64 weights at a time are shared through workgroup memory, unpacked once.
// Steps 3 and 4 of docs/kx1.md.

const INVOCATIONS = 64u;
const TILE = 32u; // rows, and pairs
const STEP = 8u; // an invocation's rows and pairs are 8 apart, so that neighbours read neighbouring words

// Of each row or pair: even first, even second, odd first, odd second sixteen codes; all of one kind stand together.
var<workgroup> weight_codes: array<vec4<u32>, 4u * TILE>;
var<workgroup> input_codes: array<vec4<u32>, 4u * TILE>;
var<workgroup> pair_starts: array<u32, TILE>;

struct Sums { a: Sum, b: Sum, c: Sum, d: Sum } // of an invocation's four rows

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let task = tasks[shape.first_task + group.y];
  let first_row = shape.first_row + group.x * TILE;
  let row = first_row + local / STEP;
  let column = local % STEP;
  if (local < TILE) {
    pair_starts[local] = input_start(task, local);
  }
  workgroupBarrier();
  let starts = Uints(
    pair_starts[column],
    pair_starts[column + STEP],
    pair_starts[column + 2u * STEP],
    pair_starts[column + 3u * STEP],
  );
  var acc_a = wide_zero();
  var acc_b = wide_zero();
  var acc_c = wide_zero();
  var acc_d = wide_zero();
  for (var number = 0u; number < shape.n_blocks; number++) {
    let a = block_of(task, last_row(row), number);
    let b = block_of(task, last_row(row + STEP), number);
    let c = block_of(task, last_row(row + 2u * STEP), number);
    let d = block_of(task, last_row(row + 3u * STEP), number);
    let x = starts + Uints(number * QUADS);
    let facts = facts_of(inputs_at(x, FACTS));
    var sums = Sums();
    for (var piece = 0u; piece < 4u; piece++) {
      workgroupBarrier();
      share_codes(task, first_row, number, piece, local);
      workgroupBarrier();
      let even = even_multiplier(facts, piece);
      let odd = odd_multiplier(facts, piece);
      let scales_a = piece_scales(a, piece);
      let scales_b = piece_scales(b, piece);
      let scales_c = piece_scales(c, piece);
      let scales_d = piece_scales(d, piece);
      let at = local / STEP;
      let first = shared_inputs(column, 0u);
      let second = shared_inputs(column, 1u);
      sums.a = add_dots(sums.a, scales_a.xy, shared_dots(at, 0u, first), shared_dots(at, 1u, second), even);
      sums.b = add_dots(sums.b, scales_b.xy, shared_dots(at + 8u, 0u, first), shared_dots(at + 8u, 1u, second), even);
      sums.c = add_dots(sums.c, scales_c.xy, shared_dots(at + 16u, 0u, first), shared_dots(at + 16u, 1u, second), even);
      sums.d = add_dots(sums.d, scales_d.xy, shared_dots(at + 24u, 0u, first), shared_dots(at + 24u, 1u, second), even);
      let third = shared_inputs(column, 2u);
      let fourth = shared_inputs(column, 3u);
      sums.a = add_dots(sums.a, scales_a.zw, shared_dots(at, 2u, third), shared_dots(at, 3u, fourth), odd);
      sums.b = add_dots(sums.b, scales_b.zw, shared_dots(at + 8u, 2u, third), shared_dots(at + 8u, 3u, fourth), odd);
      sums.c = add_dots(sums.c, scales_c.zw, shared_dots(at + 16u, 2u, third), shared_dots(at + 16u, 3u, fourth), odd);
      sums.d = add_dots(sums.d, scales_d.zw, shared_dots(at + 24u, 2u, third), shared_dots(at + 24u, 3u, fourth), odd);
    }
    let low = inputs_at(x, SUMS);
    let high = inputs_at(x, SUMS + 1u);
    acc_a = wide_add(acc_a, wide_shift_down(block_value(add_mins(sums.a, a, low, high), a), facts.shift));
    acc_b = wide_add(acc_b, wide_shift_down(block_value(add_mins(sums.b, b, low, high), b), facts.shift));
    acc_c = wide_add(acc_c, wide_shift_down(block_value(add_mins(sums.c, c, low, high), c), facts.shift));
    acc_d = wide_add(acc_d, wide_shift_down(block_value(add_mins(sums.d, d, low, high), d), facts.shift));
  }
  let row_exponent = facts_of(inputs_at(starts, FACTS)).row_exponent;
  store_apart(task, column, row, output_bits(acc_a, row_exponent, task.ew));
  store_apart(task, column, row + STEP, output_bits(acc_b, row_exponent, task.ew));
  store_apart(task, column, row + 2u * STEP, output_bits(acc_c, row_exponent, task.ew));
  store_apart(task, column, row + 3u * STEP, output_bits(acc_d, row_exponent, task.ew));
}

// Rows past the matrix's end are computed as its last row, and not stored.
fn last_row(row: u32) -> u32 {
  return min(row, shape.n_out - 1u);
}

// Each invocation unpacks half a piece of one weight row, and copies half a piece of one pair.
fn share_codes(task: Task, first_row: u32, number: u32, piece: u32, local: u32) {
  let row = local / 2u;
  let half = local % 2u;
  let codes = codes_of(block_of(task, last_row(first_row + row), number), piece, half);
  weight_codes[half * TILE + row] = codes.even;
  weight_codes[(half + 2u) * TILE + row] = codes.odd;
  let x = pair_starts[row] + number * QUADS + piece * 4u + half;
  input_codes[half * TILE + row] = inputs[x];
  input_codes[(half + 2u) * TILE + row] = inputs[x + 2u];
}

fn shared_inputs(column: u32, kind: u32) -> Quads {
  let at = kind * TILE + column;
  return Quads(input_codes[at], input_codes[at + STEP], input_codes[at + 2u * STEP], input_codes[at + 3u * STEP]);
}

fn shared_dots(row: u32, kind: u32, inputs_of_pairs: Quads) -> Ints {
  return dots(weight_codes[kind * TILE + row], inputs_of_pairs);
}

fn store_apart(task: Task, column: u32, row: u32, values: Uints) {
  store_one(task, column, row, values.x);
  store_one(task, column + STEP, row, values.y);
  store_one(task, column + 2u * STEP, row, values.z);
  store_one(task, column + 3u * STEP, row, values.w);
}
