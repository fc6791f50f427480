// Four pairs an invocation: the names with which the matrix programs are written, as vectors. Twin of width_1.wgsl.

alias Ints = vec4<i32>;
alias Uints = vec4<u32>;
const WIDTH = 4u;

// Sixteen codes of each of the WIDTH input rows.
struct Quads { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> }

fn inputs_at(starts: Uints, offset: u32) -> Quads {
  let at = starts + Uints(offset);
  return Quads(inputs[at.x], inputs[at.y], inputs[at.z], inputs[at.w]);
}

fn dots(codes: vec4<u32>, quads: Quads) -> Ints {
  return Ints(dot16(codes, quads.a), dot16(codes, quads.b), dot16(codes, quads.c), dot16(codes, quads.d));
}

// A weight row's four factors times each row's four numbers.
fn int_dots(factors: vec4<i32>, quads: Quads) -> Ints {
  return Ints(
    dot(factors, bitcast<vec4<i32>>(quads.a)),
    dot(factors, bitcast<vec4<i32>>(quads.b)),
    dot(factors, bitcast<vec4<i32>>(quads.c)),
    dot(factors, bitcast<vec4<i32>>(quads.d)),
  );
}

fn facts_of(quads: Quads) -> Facts {
  return Facts(
    Uints(quads.a.x, quads.b.x, quads.c.x, quads.d.x),
    Uints(quads.a.y, quads.b.y, quads.c.y, quads.d.y),
    Uints(quads.a.z, quads.b.z, quads.c.z, quads.d.z),
  );
}

fn input_starts(task: Task, first: u32) -> Uints {
  return Uints(
    input_start(task, first),
    input_start(task, first + 1u),
    input_start(task, first + 2u),
    input_start(task, first + 3u),
  );
}

fn store(task: Task, first: u32, row: u32, values: Uints) {
  store_one(task, first, row, values.x);
  store_one(task, first + 1u, row, values.y);
  store_one(task, first + 2u, row, values.z);
  store_one(task, first + 3u, row, values.w);
}
