// A matrix times up to 32 input rows of one expert, for many pairs: a workgroup computes 32 weight rows times 32 pairs,
// an invocation four of each. The codes of 64 weights at a time are shared through workgroup memory, unpacked once.
// Steps 3 and 4 of docs/reference/kx1.md.

const INVOCATIONS = 64u;
const TILE = 32u; // rows, and pairs
const STEP = 8u; // an invocation's rows and pairs are 8 apart, so that neighbours read neighbouring words

// Of each row or pair: even first, even second, odd first, odd second sixteen codes; all of one kind stand together.
var<workgroup> weight_codes: array<vec4<u32>, 4u * TILE>;
var<workgroup> input_codes: array<vec4<u32>, 4u * TILE>;
var<workgroup> pair_starts: array<u32, TILE>;

// Of an invocation's four rows: blocks, their sums, and the sums of their shifted values.
struct Blocks { a: Block, b: Block, c: Block, d: Block }

struct Sums { a: Sum, b: Sum, c: Sum, d: Sum }

struct Accs { a: Wide, b: Wide, c: Wide, d: Wide }

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let task = tasks[shape.first_task + group.y];
  let first_row = shape.first_row + group.x * TILE;
  let at = local / STEP;
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
  var accs = Accs();
  for (var number = 0u; number < shape.n_blocks; number++) {
    let blocks = blocks_of(task, first_row + at, number);
    let x = starts + Uints(number * QUADS);
    let facts = facts_of(inputs_at(x, FACTS));
    var sums = Sums();
    for (var piece = 0u; piece < 4u; piece++) {
      workgroupBarrier();
      share_codes(task, first_row, number, piece, local);
      workgroupBarrier();
      sums = add_half(sums, blocks, piece, 0u, at, column, even_multiplier(facts, piece));
      sums = add_half(sums, blocks, piece, 2u, at, column, odd_multiplier(facts, piece));
    }
    accs = add_values(accs, sums, blocks, inputs_at(x, SUMS), inputs_at(x, SUMS + 1u), facts.shift);
  }
  let row_exponent = facts_of(inputs_at(starts, FACTS)).row_exponent;
  store_apart(task, column, first_row + at, output_bits(accs.a, row_exponent, task.ew));
  store_apart(task, column, first_row + at + STEP, output_bits(accs.b, row_exponent, task.ew));
  store_apart(task, column, first_row + at + 2u * STEP, output_bits(accs.c, row_exponent, task.ew));
  store_apart(task, column, first_row + at + 3u * STEP, output_bits(accs.d, row_exponent, task.ew));
}

fn blocks_of(task: Task, row: u32, number: u32) -> Blocks {
  return Blocks(
    block_of(task, last_row(row), number),
    block_of(task, last_row(row + STEP), number),
    block_of(task, last_row(row + 2u * STEP), number),
    block_of(task, last_row(row + 3u * STEP), number),
  );
}

// Add the even (kind 0) or the odd (kind 2) sub-block of a piece, for all four rows.
fn add_half(sums: Sums, blocks: Blocks, piece: u32, kind: u32, at: u32, column: u32, multiplier: Ints) -> Sums {
  let first = shared_inputs(column, kind);
  let second = shared_inputs(column, kind + 1u);
  return Sums(
    add_shared(sums.a, blocks.a, piece, kind, at, first, second, multiplier),
    add_shared(sums.b, blocks.b, piece, kind, at + STEP, first, second, multiplier),
    add_shared(sums.c, blocks.c, piece, kind, at + 2u * STEP, first, second, multiplier),
    add_shared(sums.d, blocks.d, piece, kind, at + 3u * STEP, first, second, multiplier),
  );
}

fn add_shared(
  sum: Sum, block: Block, piece: u32, kind: u32, row: u32, first: Quads, second: Quads, multiplier: Ints
) -> Sum {
  let all = piece_scales(block, piece);
  let scales = select(all.zw, all.xy, kind == 0u);
  return add_dots(sum, scales, shared_dots(row, kind, first), shared_dots(row, kind + 1u, second), multiplier);
}

fn add_values(accs: Accs, sums: Sums, blocks: Blocks, low: Quads, high: Quads, shift: Uints) -> Accs {
  return Accs(
    wide_add(accs.a, wide_shift_down(block_value(add_mins(sums.a, blocks.a, low, high), blocks.a), shift)),
    wide_add(accs.b, wide_shift_down(block_value(add_mins(sums.b, blocks.b, low, high), blocks.b), shift)),
    wide_add(accs.c, wide_shift_down(block_value(add_mins(sums.c, blocks.c, low, high), blocks.c), shift)),
    wide_add(accs.d, wide_shift_down(block_value(add_mins(sums.d, blocks.d, low, high), blocks.d), shift)),
  );
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
