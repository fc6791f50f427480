// What unpack_rows.wgsl and quantise.wgsl share: the bindings, and how a block of activations is laid out.
// README.md beside this file says what a host puts into each buffer.

struct Shape {
  n_blocks: u32,
  unused_0: u32,
  unused_1: u32,
  unused_2: u32,
  unused_3: u32,
  unused_4: u32,
  unused_5: u32,
  unused_6: u32,
}

@group(0) @binding(1) var<storage, read> inputs: array<u32>;
@group(0) @binding(2) var<storage, read_write> activations: array<u32>;
@group(0) @binding(5) var<uniform> shape: Shape;

const INVOCATIONS = 64u;
const MAX_BLOCKS = 64u; // rows of 16,384
const BLOCK_WORDS = 76u;
const SUMS_AT = 64u;
const MULTIPLIERS_AT = 72u;

var<workgroup> largest_exponent: atomic<u32>; // kt

// Not all drivers clear workgroup memory, though the language says so.
fn forget_exponent(local: u32) {
  if (local == 0u) {
    atomicStore(&largest_exponent, 0u);
  }
}

// The sum of four signed codes.
fn code_sum(word: u32) -> i32 {
  return dot4(word, 0x01010101u);
}

// The last words of a block: multipliers, shift, kt, kb.
fn store_facts(at: u32, multipliers: u32, exponent: u32, row_exponent: u32) {
  activations[at + MULTIPLIERS_AT] = multipliers;
  activations[at + MULTIPLIERS_AT + 1u] = min(row_exponent - exponent, 63u);
  activations[at + MULTIPLIERS_AT + 2u] = row_exponent;
  activations[at + MULTIPLIERS_AT + 3u] = exponent;
}
