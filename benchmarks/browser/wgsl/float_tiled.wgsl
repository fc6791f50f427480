// A matrix times up to 32 rows: a workgroup computes 32 weight rows times 32 pairs, an invocation four of each, 64
// weights at a time in workgroup memory. After float_matmul.wgsl and a type.

const INVOCATIONS = 64u;
const TILE = 32u;
const STEP = 8u;

var<workgroup> weight_tile: array<vec4<f32>, 16u * TILE>;
var<workgroup> input_tile: array<vec4<f32>, 16u * TILE>;

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let task = tasks[shape.first_task + group.y];
  let first_row = shape.first_row + group.x * TILE;
  let at = local / STEP;
  let column = local % STEP;
  var a = vec4<f32>();
  var b = vec4<f32>();
  var c = vec4<f32>();
  var d = vec4<f32>();
  for (var block = 0u; block < shape.n_blocks; block++) {
    for (var piece = 0u; piece < 4u; piece++) {
      workgroupBarrier();
      share(task, first_row, block, piece, local);
      workgroupBarrier();
      for (var k = 0u; k < 16u; k++) {
        let x = k * TILE + column;
        let w = k * TILE + at;
        a += dots(weight_tile[w], x);
        b += dots(weight_tile[w + STEP], x);
        c += dots(weight_tile[w + 2u * STEP], x);
        d += dots(weight_tile[w + 3u * STEP], x);
      }
    }
  }
  store_apart(task, column, first_row + at, a);
  store_apart(task, column, first_row + at + STEP, b);
  store_apart(task, column, first_row + at + 2u * STEP, c);
  store_apart(task, column, first_row + at + 3u * STEP, d);
}

// Each invocation dequantises half a piece of one weight row, and copies half a piece of one pair.
fn share(task: Task, first_row: u32, block: u32, piece: u32, local: u32) {
  let row = local / 2u;
  let matrix_row = min(first_row + row, shape.n_out - 1u);
  let offset = task.weights + matrix_row * shape.row_bytes + block * BLOCK_BYTES;
  let start = input_start(task, row) + block * 64u + piece * 16u;
  for (var j = 0u; j < 4u; j++) {
    let i = (local % 2u) * 4u + j;
    let eight = eight_of(offset, piece, i);
    weight_tile[i * TILE + row] = eight.even;
    weight_tile[(i + 8u) * TILE + row] = eight.odd;
    input_tile[i * TILE + row] = inputs[start + i];
    input_tile[(i + 8u) * TILE + row] = inputs[start + 8u + i];
  }
}

fn dots(four: vec4<f32>, x: u32) -> vec4<f32> {
  return vec4<f32>(
    dot(four, input_tile[x]),
    dot(four, input_tile[x + STEP]),
    dot(four, input_tile[x + 2u * STEP]),
    dot(four, input_tile[x + 3u * STEP]),
  );
}

fn store_apart(task: Task, column: u32, row: u32, values: vec4<f32>) {
  store_one(task, column, row, values.x);
  store_one(task, column + STEP, row, values.y);
  store_one(task, column + 2u * STEP, row, values.z);
  store_one(task, column + 3u * STEP, row, values.w);
}
