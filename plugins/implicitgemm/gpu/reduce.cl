// y[i] = epilogue(sum over parts of partial[part][i]), the parts added in their order: deterministic.
//
// SIZE     elements of the output; PARTS parts of the sum
// WEIGHTS  1: partial sums are [oc][tap][ic/g] and are written as NCHW weights [oc][ic/g][tap]; 0: in the result's order
// INNER, CHANNELS  element i belongs to channel i / INNER % CHANNELS
kernel void reduce(global const ACC *restrict partial, OUT_PARAMS) {
  const OUT_INDEX i = get_global_id(0);
  if (i >= SIZE) return;
  partial += PARTIAL_AT;
  ACC v = partial[i];
  for (int part = 1; part < PARTS; ++part) v += partial[i + (OUT_INDEX)part * SIZE];
#if WEIGHTS
  const int c = i % ICG, tap = i / ICG % TAPS;
  put(OUT_ARGS, v, (i / (ICG * TAPS) * ICG + c) * TAPS + tap, 0);
#else
  put(OUT_ARGS, v, i, i / INNER % CHANNELS);
#endif
}
