// Packed rows as they travel to activations: one workgroup a row, one invocation a sub-block. After activations.wgsl.
// The host has checked codes and multipliers.

const PACKED_BYTES = 261u; // of a block: 256 codes, 4 bytes of multipliers, an exponent

// Four bytes from any offset; the buffer ends at least four bytes after the last row.
fn word_at(offset: u32) -> u32 {
  let at = offset >> 2u;
  let shift = (offset & 3u) * 8u;
  return (inputs[at] >> shift) | ((inputs[at + 1u] << (31u - shift)) << 1u);
}

// kb of the block that begins at `offset`.
fn packed_exponent(offset: u32) -> u32 {
  let packed = word_at(offset + 260u) & 255u;
  return select(packed + 13u, 0u, packed == 0u);
}

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let first_block = group.x * shape.n_blocks;
  forget_exponent(local);
  workgroupBarrier();
  if (local < shape.n_blocks) {
    atomicMax(&largest_exponent, packed_exponent((first_block + local) * PACKED_BYTES));
  }
  workgroupBarrier();
  let row_exponent = atomicLoad(&largest_exponent);
  for (var number = local; number < shape.n_blocks * 8u; number += INVOCATIONS) {
    let block = first_block + number / 8u;
    let sub_block = number % 8u;
    let source = block * PACKED_BYTES;
    let multipliers = word_at(source + 256u);
    var sum = 0;
    for (var word = 0u; word < 8u; word++) {
      let codes = word_at(source + sub_block * 32u + word * 4u);
      sum += code_sum(codes);
      activations[block * BLOCK_WORDS + sub_block * 8u + word] = codes;
    }
    let multiplier = i32((multipliers >> (4u * sub_block)) & 15u);
    activations[block * BLOCK_WORDS + SUMS_AT + sub_block] = bitcast<u32>(multiplier * sum);
    if (sub_block == 0u) {
      store_facts(block * BLOCK_WORDS, multipliers, packed_exponent(source), row_exponent);
    }
  }
}
