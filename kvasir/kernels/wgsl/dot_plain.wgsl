// The dot product of four signed bytes with four, for languages without dot4I8Packed. Twin of dot_packed.wgsl.

fn signed_bytes(word: u32) -> vec4<i32> {
  return (vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}

fn dot4(a: u32, b: u32) -> i32 {
  return dot(signed_bytes(a), signed_bytes(b));
}
