// n / d for divisors that are kernel arguments: a multiplication and a shift, as compilers do for a literal divisor.
//
// WIDE           1: n may be 2^31 or more, so the division operator is used
// DIVISOR(d)     a kernel's parameters of a divisor; ``divided_by`` returns their arguments
// DIVIDED(n, d)  n / d, for n >= 0
#define DIVISOR(d) const int d, const uint d##_by, const uint d##_shift
#if WIDE
#define DIVIDED(n, d) ((n) / (d))
#else
#define DIVIDED(n, d) ((int)((mul_hi((uint)(n), d##_by) + (uint)(n)) >> d##_shift))
#endif
