// Step 1 of docs/reference/kx1.md: f32 bits, given by `row_value`, to activations. One workgroup a row; an invocation
// takes eight values at a time. After activations.wgsl and a file that has `row_value` (silu.wgsl).

const UNIT = 8u; // values
const BLOCK_UNITS = 32u;

var<workgroup> maxima: array<atomic<u32>, 8u * MAX_BLOCKS>; // |bits| of each sub-block
var<workgroup> code_sums: array<atomic<i32>, 8u * MAX_BLOCKS>;

// s, ex and kb of a block.
struct Scale { shift: u32, largest: u32, exponent: u32 }

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let n_units = shape.n_blocks * BLOCK_UNITS;
  forget_exponent(local);
  for (var number = local; number < shape.n_blocks * 8u; number += INVOCATIONS) {
    atomicStore(&maxima[number], 0u);
    atomicStore(&code_sums[number], 0);
  }
  workgroupBarrier();
  for (var unit = local; unit < n_units; unit += INVOCATIONS) {
    find_maximum(group.x, unit);
  }
  workgroupBarrier();
  if (local < shape.n_blocks) {
    atomicMax(&largest_exponent, block_scale(local).exponent);
  }
  let first = group.x * shape.n_blocks * BLOCK_WORDS;
  for (var unit = local; unit < n_units; unit += INVOCATIONS) {
    quantise_unit(group.x, unit, first);
  }
  workgroupBarrier();
  let row_exponent = atomicLoad(&largest_exponent);
  for (var number = local; number < shape.n_blocks * 8u; number += INVOCATIONS) {
    let multiplier = i32(multiplier_of(number, block_scale(number / 8u)));
    let at = first + (number / 8u) * BLOCK_WORDS;
    activations[at + SUMS_AT + number % 8u] = bitcast<u32>(multiplier * atomicLoad(&code_sums[number]));
  }
  if (local < shape.n_blocks) {
    let scale = block_scale(local);
    var multipliers = 0u;
    for (var sub_block = 0u; sub_block < 8u; sub_block++) {
      multipliers |= multiplier_of(local * 8u + sub_block, scale) << (4u * sub_block);
    }
    store_facts(first + local * BLOCK_WORDS, multipliers, scale.exponent, row_exponent);
  }
}

fn find_maximum(row: u32, unit: u32) {
  var largest = 0u;
  for (var i = 0u; i < UNIT; i++) {
    largest = max(largest, row_value(row, unit * UNIT + i) & 0x7fffffffu);
  }
  atomicMax(&maxima[unit / 4u], largest);
}

// mant(bits): subnormal numbers count as 0.
fn mantissa_of(bits: u32) -> u32 {
  return select(0u, (bits & 0x7fffffu) | 0x800000u, (bits & 0x7f800000u) != 0u);
}

fn block_scale(block: u32) -> Scale {
  var largest = 0u;
  for (var sub_block = 0u; sub_block < 8u; sub_block++) {
    largest = max(largest, atomicLoad(&maxima[block * 8u + sub_block]));
  }
  let field = largest >> 23u;
  let shift = select(13u, 14u, mantissa_of(largest) > 15605760u);
  return Scale(shift, field, select(0u, field + shift, field > 0u));
}

// a_j of the row's sub-block `number`.
fn multiplier_of(number: u32, scale: Scale) -> u32 {
  let largest = atomicLoad(&maxima[number]);
  let mantissa = mantissa_of(largest) >> min(scale.largest - (largest >> 23u), 31u);
  return max(1u, ((mantissa + (127u << scale.shift) - 1u) >> scale.shift) / 127u);
}

fn code_of(bits: u32, inverse: u32, scale: Scale) -> u32 {
  let field = (bits >> 23u) & 255u;
  let mantissa = mantissa_of(bits) >> min(8u + scale.largest - field, 31u);
  let code = (mantissa * inverse + (1u << (scale.shift + 10u))) >> (scale.shift + 11u);
  return select(code, 0u - code, (bits >> 31u) == 1u) & 255u;
}

fn quantise_unit(row: u32, unit: u32, first: u32) {
  let scale = block_scale(unit / BLOCK_UNITS);
  let inverse = 524288u / multiplier_of(unit / 4u, scale);
  let at = first + (unit / BLOCK_UNITS) * BLOCK_WORDS + (unit % BLOCK_UNITS) * 2u;
  for (var word = 0u; word < 2u; word++) {
    var codes = 0u;
    for (var i = 0u; i < 4u; i++) {
      let bits = row_value(row, unit * UNIT + word * 4u + i);
      codes |= code_of(bits, inverse, scale) << (8u * i);
    }
    activations[at + word] = codes;
    atomicAdd(&code_sums[unit / 4u], code_sum(codes));
  }
}
