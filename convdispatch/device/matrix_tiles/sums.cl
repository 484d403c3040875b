// Adds the tensor cores' sums in float32 registers.

// Adds a part to a sum, and replaces the part by the addition's rounding error (Dekker 1971; exact if |sum| >= |part|).
// The next part starts with it, so errors do not grow with the number of additions (Kahan 1965). Dekker's algorithm
// takes three operations; this one takes four, but replaces each value in place, which saves up to 50 registers.
// A sum beyond the largest float becomes NaN at the next addition, not infinity.
inline float add_part(float *sum, float part) {
  const float added = *sum + part - *sum;
  *sum += added;
  return part - added;
}
