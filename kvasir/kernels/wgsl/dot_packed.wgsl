// The dot product of four signed bytes with four, as the language has it. Every program begins with this file or its twin.

fn dot4(a: u32, b: u32) -> i32 {
  return dot4I8Packed(a, b);
}
