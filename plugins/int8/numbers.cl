// Fills the numbers that all channels share, for the functions of vector_code.py; NUMBER_word: the index of a word.
void numbers_of(global int *to, TABLE_PARAMS) {
  global float *f = (global float *)to;
  ONCE for (int i = 0; i < 16; ++i) {
    to[NUMBER_zero + i] = (table[1] & 0xffff) * 0x10001;
    to[NUMBER_order + i] = 4 * (i % 4) + i / 4;
  }
  f[NUMBER_low] = WORD(6), f[NUMBER_high] = WORD(7), f[NUMBER_sum_low] = WORD(8), f[NUMBER_sum_high] = WORD(9);
  f[NUMBER_sum_scale] = WORD(5), f[NUMBER_r_zero] = (float)table[2], f[NUMBER_r_scale] = WORD(4);
  f[NUMBER_y_scale] = WORD(12), f[NUMBER_inverse] = 1.0f / WORD(12);
  to[NUMBER_bounded] = !table[14], to[NUMBER_rounds] = table[3] ? 0xffff : 0, to[NUMBER_slow] = !table[13];
}
