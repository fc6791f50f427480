// A matrix times four rows: LANES invocations share a weight row. After a header, float_matmul.wgsl and a type.

const INVOCATIONS = 64u;

var<workgroup> partial: array<vec4<f32>, INVOCATIONS>;

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let task = tasks[shape.first_task + group.y];
  let row = shape.first_row + group.x * (INVOCATIONS / LANES) + local / LANES;
  let lane = local % LANES;
  let start = vec4<u32>(
    input_start(task, 0u),
    input_start(task, 1u),
    input_start(task, 2u),
    input_start(task, 3u),
  );
  var acc = vec4<f32>();
  if (row < shape.n_out) {
    for (var block = lane; block < shape.n_blocks; block += LANES) {
      let offset = task.weights + row * shape.row_bytes + block * BLOCK_BYTES;
      for (var piece = 0u; piece < 4u; piece++) {
        let x = start + vec4<u32>(block * 64u + piece * 16u);
        for (var i = 0u; i < 8u; i++) {
          let eight = eight_of(offset, piece, i);
          acc += dots(eight.even, x + vec4<u32>(i)) + dots(eight.odd, x + vec4<u32>(8u + i));
        }
      }
    }
  }
  partial[local] = acc;
  workgroupBarrier();
  for (var step = LANES / 2u; step > 0u; step /= 2u) {
    if (lane < step) {
      partial[local] += partial[local + step];
    }
    workgroupBarrier();
  }
  if (lane == 0u) {
    let sums = partial[local];
    store_one(task, 0u, row, sums.x);
    store_one(task, 1u, row, sums.y);
    store_one(task, 2u, row, sums.z);
    store_one(task, 3u, row, sums.w);
  }
}

fn dots(four: vec4<f32>, x: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(dot(four, inputs[x.x]), dot(four, inputs[x.y]), dot(four, inputs[x.z]), dot(four, inputs[x.w]));
}
