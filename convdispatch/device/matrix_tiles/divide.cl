// n / d for divisors that are arguments: a multiplication and a shift, as a compiler makes of a literal divisor.
//
// WIDE           1: n may be 2^31 and more, and is divided as it is
// DIVISOR(d)     a kernel's parameters of a divisor; ``divisors.divided_by`` makes their arguments
// DIVIDED(n, d)  n / d, for n >= 0
#define DIVISOR(d) const uint d, const uint d##_by, const uint d##_shift
#if WIDE
#define DIVIDED(n, d) ((n) / (d))
#else
#define DIVIDED(n, d) ((mul_hi((uint)(n), d##_by) + (uint)(n)) >> d##_shift)
#endif
