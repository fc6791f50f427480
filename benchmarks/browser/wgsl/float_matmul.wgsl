// The floating-point expert that KX1's WGSL is compared with: bindings and tables as in KX1's matmul.wgsl, but rows and
// outputs are f32. A weight type's file and a program follow. For `bench_webgpu` alone; nothing serves with it.

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
  unused_0: u32,
  first_pair: u32,
  n_pairs: u32,
  column: u32,
  unused_1: u32,
  unused_2: u32,
  unused_3: u32,
}

@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read> inputs: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> outputs: array<f32>;
@group(0) @binding(3) var<storage, read> tasks: array<Task>;
@group(0) @binding(4) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(5) var<uniform> shape: Shape;

// Four weights at 64 piece + 4 i of a block, and the four that stand 32 later.
struct Eight { even: vec4<f32>, odd: vec4<f32> }

fn half_at(offset: u32) -> f32 {
  return unpack2x16float((weights[offset >> 2u] >> ((offset & 2u) * 8u)) & 0xffffu).x;
}

fn word_at(offset: u32) -> u32 {
  let at = offset >> 2u;
  if ((offset & 2u) == 0u) {
    return weights[at];
  }
  return (weights[at] >> 16u) | (weights[at + 1u] << 16u);
}

fn floats(bytes: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(bytes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}

// Where a task's pair begins in the inputs, in vec4s. Past the last pair it is the last: computed, never stored.
fn input_start(task: Task, number: u32) -> u32 {
  return pairs[task.first_pair + min(number, task.n_pairs - 1u)].x * shape.n_blocks * 64u;
}

fn store_one(task: Task, number: u32, row: u32, value: f32) {
  if (number < task.n_pairs && row < shape.n_out) {
    outputs[pairs[task.first_pair + number].y * shape.out_stride + task.column + row] = value;
  }
}
