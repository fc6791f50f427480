// One pair an invocation: the names with which the matrix programs are written, as scalars. Twin of width_4.wgsl.

alias Ints = i32;
alias Uints = u32;
const WIDTH = 1u;

// Sixteen codes of each of the WIDTH input rows.
struct Quads { a: vec4<u32> }

fn inputs_at(starts: Uints, offset: u32) -> Quads {
  return Quads(inputs[starts + offset]);
}

fn dots(codes: vec4<u32>, quads: Quads) -> Ints {
  return dot16(codes, quads.a);
}

// A weight row's four factors times each row's four numbers.
fn int_dots(factors: vec4<i32>, quads: Quads) -> Ints {
  return dot(factors, bitcast<vec4<i32>>(quads.a));
}

fn facts_of(quads: Quads) -> Facts {
  return Facts(quads.a.x, quads.a.y, quads.a.z);
}

fn input_starts(task: Task, first: u32) -> Uints {
  return input_start(task, first);
}

fn store(task: Task, first: u32, row: u32, values: Uints) {
  store_one(task, first, row, values);
}
