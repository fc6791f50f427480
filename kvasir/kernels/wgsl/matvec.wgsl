// A matrix times WIDTH input rows of one expert, for few pairs: LANES invocations share a weight row and take every
// LANES-th block each. Sums are exact, so their number changes no bit. Steps 3 and 4 of docs/reference/kx1.md.

const INVOCATIONS = 64u;

var<workgroup> partial: array<Wide, INVOCATIONS>;

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let task = tasks[shape.first_task + group.y];
  let row = shape.first_row + group.x * (INVOCATIONS / LANES) + local / LANES;
  let lane = local % LANES;
  let starts = input_starts(task, 0u);
  var acc = wide_zero();
  if (row < shape.n_out) {
    for (var block = lane; block < shape.n_blocks; block += LANES) {
      acc = wide_add(acc, shifted_value(task, row, block, starts));
    }
  }
  partial[local] = acc;
  workgroupBarrier();
  for (var step = LANES / 2u; step > 0u; step /= 2u) {
    if (lane < step) {
      partial[local] = wide_add(partial[local], partial[local + step]);
    }
    workgroupBarrier();
  }
  if (lane == 0u) {
    let facts = facts_of(inputs_at(starts, FACTS));
    store(task, 0u, row, output_bits(partial[local], facts.row_exponent, task.ew));
  }
}

// A block's complete value for each input row, shifted down to its row's exponent.
fn shifted_value(task: Task, row: u32, number: u32, starts: Uints) -> Wide {
  let block = block_of(task, row, number);
  let x = starts + Uints(number * QUADS);
  let facts = facts_of(inputs_at(x, FACTS));
  var sum = Sum();
  for (var piece = 0u; piece < 4u; piece++) {
    let first = codes_of(block, piece, 0u);
    let second = codes_of(block, piece, 1u);
    let scales = piece_scales(block, piece);
    let even_first = dots(first.even, inputs_at(x, piece * 4u));
    let even_second = dots(second.even, inputs_at(x, piece * 4u + 1u));
    sum = add_dots(sum, scales.xy, even_first, even_second, even_multiplier(facts, piece));
    let odd_first = dots(first.odd, inputs_at(x, piece * 4u + 2u));
    let odd_second = dots(second.odd, inputs_at(x, piece * 4u + 3u));
    sum = add_dots(sum, scales.zw, odd_first, odd_second, odd_multiplier(facts, piece));
  }
  sum = add_mins(sum, block, inputs_at(x, SUMS), inputs_at(x, SUMS + 1u));
  return wide_shift_down(block_value(sum, block), facts.shift);
}
