// Sums of tensor cores' sums, in float32 registers.

// Adds a part to a sum; what the addition rounds away is returned (Dekker 1971; exact where |sum| >= |part|). The next
// part begins with it, so errors do not grow with the number of additions (Kahan 1965). It replaces the part.
// Dekker takes three operations; with four, each value is replaced where it stands, which spares up to 50 registers.
// A sum beyond the largest float becomes NaN at the next addition, not infinity.
inline float add_part(float *sum, float part) {
  const float added = *sum + part - *sum;
  *sum += added;
  return part - added;
}
