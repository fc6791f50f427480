// 64-bit integers, for the scales of step 2 and the rounding of step 4 of docs/reference/kx1.md.
// Written once for scalars and vectors: Ints and Uints are width_1.wgsl's or width_4.wgsl's. No float anywhere.

struct Wide { low: Uints, high: Uints }

fn wide_zero() -> Wide {
  return Wide(Uints(0u), Uints(0u));
}

fn wide_add(a: Wide, b: Wide) -> Wide {
  let low = a.low + b.low;
  return Wide(low, a.high + b.high + select(Uints(0u), Uints(1u), low < a.low));
}

fn wide_negate(a: Wide) -> Wide {
  return wide_add(Wide(~a.low, ~a.high), Wide(Uints(1u), Uints(0u)));
}

// The full product of two signed words. Sixteen bits a digit, so that no partial product or carry is lost.
fn wide_multiply(a: Ints, b: Ints) -> Wide {
  let x = bitcast<Uints>(a);
  let y = bitcast<Uints>(b);
  let digit = Uints(0xffffu);
  let half = Uints(16u);
  let low = (x & digit) * (y & digit);
  let middle = (x >> half) * (y & digit) + (low >> half);
  let other = (x & digit) * (y >> half) + (middle & digit);
  let unsigned_high = (x >> half) * (y >> half) + (middle >> half) + (other >> half);
  let zero = Uints(0u);
  let correction = select(zero, y, a < Ints(0)) + select(zero, x, b < Ints(0));
  return Wide(x * y, unsigned_high - correction);
}

// An arithmetic shift by 0..63. WGSL shifts by less than 32 only.
fn wide_shift_down(a: Wide, amount: Uints) -> Wide {
  let near = amount & Uints(31u);
  let is_far = amount > Uints(31u);
  let high = bitcast<Uints>(bitcast<Ints>(a.high) >> near);
  let low = (a.low >> near) | ((a.high << Uints(1u)) << (Uints(31u) - near));
  let sign = bitcast<Uints>(bitcast<Ints>(a.high) >> Uints(31u));
  return Wide(select(low, high, is_far), select(high, sign, is_far));
}

// 2^amount, 0..63.
fn wide_power(amount: Uints) -> Wide {
  let bit = Uints(1u) << (amount & Uints(31u));
  let is_far = amount > Uints(31u);
  return Wide(select(bit, Uints(0u), is_far), select(Uints(0u), bit, is_far));
}

// Step 2: an f16 scale as a fixed-point number relative to the matrix's largest.
fn fixed_scale(half_bits: u32, ew: u32) -> i32 {
  let field = (half_bits >> 10u) & 31u;
  let mantissa = (half_bits & 1023u) | select(0u, 1024u, field != 0u);
  let shift = min(ew + 1u - max(field, 1u), 31u);
  let magnitude = i32((mantissa << 10u) >> shift);
  return select(magnitude, -magnitude, (half_bits & 0x8000u) != 0u);
}

// Step 4: acc * 2^exponent as the bits of an f32, to nearest and even.
fn round_output(acc: Wide, exponent: Ints) -> Uints {
  let one = Uints(1u);
  let zero = Uints(0u);
  let sign = acc.high & Uints(0x80000000u);
  let negated = wide_negate(acc);
  let is_negative = sign != zero;
  let m = Wide(select(acc.low, negated.low, is_negative), select(acc.high, negated.high, is_negative));
  let length = select(
    Uints(32u) - countLeadingZeros(m.low),
    Uints(64u) - countLeadingZeros(m.high),
    m.high != zero,
  );
  let is_short = length <= Uints(24u);
  let drop = select(length - Uints(24u), one, is_short);
  let is_odd = wide_shift_down(m, drop).low & one;
  let half = wide_power(drop - one);
  let minus_one = Wide(~zero, ~zero);
  let biased = wide_add(wide_add(wide_add(m, half), minus_one), Wide(is_odd, zero));
  let rounded = wide_shift_down(biased, drop).low;
  let mantissa = select(rounded, m.low << ((Uints(24u) - length) & Uints(31u)), is_short);
  let carry = mantissa >> Uints(24u); // a carry leaves 2^24, whose low 23 bits are right as they are
  let field = bitcast<Ints>(length + carry) + Ints(126) + exponent;
  let finite = (bitcast<Uints>(field) << Uints(23u)) | (mantissa & Uints(0x7fffffu));
  let bits = sign | select(finite, Uints(0x7f7fffffu), field >= Ints(255));
  let is_nothing = (field <= Ints(0)) | ((m.low | m.high) == zero);
  return select(bits, zero, is_nothing);
}
