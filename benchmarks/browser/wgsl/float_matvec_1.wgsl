// A matrix times one row: LANES invocations share a weight row. After a header, float_matmul.wgsl and a type.

const INVOCATIONS = 64u;

var<workgroup> partial: array<f32, INVOCATIONS>;

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let task = tasks[shape.first_task + group.y];
  let row = shape.first_row + group.x * (INVOCATIONS / LANES) + local / LANES;
  let lane = local % LANES;
  let start = input_start(task, 0u);
  var acc = 0.0;
  if (row < shape.n_out) {
    for (var block = lane; block < shape.n_blocks; block += LANES) {
      let offset = task.weights + row * shape.row_bytes + block * BLOCK_BYTES;
      for (var piece = 0u; piece < 4u; piece++) {
        let x = start + block * 64u + piece * 16u;
        for (var i = 0u; i < 8u; i++) {
          let eight = eight_of(offset, piece, i);
          acc += dot(eight.even, inputs[x + i]) + dot(eight.odd, inputs[x + 8u + i]);
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
    store_one(task, 0u, row, partial[local]);
  }
}
