// y[i] = epilogue(sum over parts of partial[part][i]), the parts added in their order: deterministic.
//
// OUT_SIZE  elements of the output; PARTS parts of the sum (a literal), the first at PARTS_AT
// WEIGHTS   1: partial sums are [oc][tap][ic/g] and are written as NCHW weights [oc][ic/g][tap]; 0: in the result's order
// INNER, CHANNELS  element i belongs to channel i / INNER % CHANNELS; with WEIGHTS, to channel i % INNER of tap
//                  i / INNER % CHANNELS
kernel void reduce(global const ACC *restrict partial, OUT_PARAMS NUMBERS) {
  const OUT_INDEX i = get_global_id(0);
  if (i >= OUT_SIZE) return;
  partial += PARTS_AT;
  ACC v = partial[i];
  for (int part = 1; part < PARTS; ++part) v += partial[i + (OUT_INDEX)part * OUT_SIZE];
  const OUT_INDEX next = DIVIDED(i, INNER), outer = DIVIDED(next, CHANNELS), middle = next - outer * CHANNELS;
#if WEIGHTS
  put(OUT_ARGS, v, (outer * INNER + i - next * INNER) * CHANNELS + middle, 0);
#else
  put(OUT_ARGS, v, i, middle);
#endif
}
