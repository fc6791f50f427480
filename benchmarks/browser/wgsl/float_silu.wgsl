// silu(gate) * up in floats, one invocation a value; inputs are gate's outputs, then up's, for each slot.

struct Shape { n_blocks: u32, n_values: u32 }

@group(0) @binding(1) var<storage, read> inputs: array<f32>;
@group(0) @binding(2) var<storage, read_write> outputs: array<f32>;
@group(0) @binding(5) var<uniform> shape: Shape;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let d_ff = shape.n_blocks * 256u;
  if (id.x < shape.n_values) {
    let at = (id.x / d_ff) * 2u * d_ff + id.x % d_ff;
    let gate = inputs[at];
    outputs[id.x] = gate / (1.0 + exp(-gate)) * inputs[at + d_ff];
  }
}
