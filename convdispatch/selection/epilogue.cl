// out[i] = ACTIVATION(fresh[i] + bias[channel(i)] + residual[i] (+ out[i])): what a solver's own kernels left to do.
// fresh is out itself unless ADD_OLD.
//
//   SIZE      elements of out
//   INNER     elements between two channels: pixels of an image for channels first, 1 for channels last
//   CHANNELS  length of bias
//   CHUNK     neighbouring elements of one work item: many for a CPU's core, one for a GPU's lane
//   ADD_OLD   1 to add what out holds

kernel void epilogue(global REAL *out, global const REAL *fresh, global const REAL *bias, global const REAL *residual) {
  const long first = (long)get_global_id(0) * CHUNK;
  const long last = min(first + CHUNK, (long)SIZE);
  for (long i = first; i < last; ++i) {
    ACC v = LOAD(fresh, i);
#if BIAS
    v += LOAD(bias, (i / INNER) % CHANNELS);
#endif
#if RESIDUAL
    v += LOAD(residual, i);
#endif
#if ADD_OLD
    v += LOAD(out, i);
#endif
    STORE(out, i, ACTIVATION(ACC, v));
  }
}
