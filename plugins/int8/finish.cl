// Converts sums to bytes by ``byte_finish``: fills the numbers that it reads, and calls it.
//
// numbers: shift[32], scale[32], then these words, from ``words`` on: bounds of y, its zero point; bounds of what is
// rounded before a residual is added, its scale; the residual's zero point and scale; y's scale and its reciprocal;
// masks of channels 0 to 15 and 16 to 31; whether it is rounded before.
inline void finish_numbers(global int *words, TABLE_PARAMS) {
  global float *f = (global float *)words;
  f[0] = WORD(6), f[1] = WORD(7), words[2] = table[1];
  f[3] = WORD(8), f[4] = WORD(9), f[5] = WORD(5), f[6] = (float)table[2], f[7] = WORD(4);
  f[8] = WORD(12), f[9] = 1.0f / WORD(12), words[12] = table[3] ? 0xffff : 0;
}
#if RESIDUAL
#define FINISH_BYTES(sums, numbers, to, here, at) finish(sums, numbers, to, here, (global char *)(y + at), (global const char *)(residual + at))
#else
#define FINISH_BYTES(sums, numbers, to, here, at) finish(sums, numbers, to, here, (global char *)(y + at))
#endif
