// out[i] = ACTIVATION(fresh[i] + bias[channel(i)] + residual[i] (+ out[i])): what a solver's own kernels left to do.
// Each work item takes 256 neighbours. fresh is out itself unless ADD_OLD.
//
//   SIZE      elements of out
//   INNER     elements between two channels: pixels of an image for channels first, 1 for channels last
//   CHANNELS  length of bias
//   ADD_OLD   1 to add what out holds

kernel void epilogue(global REAL *out, global const REAL *fresh, global const REAL *bias, global const REAL *residual) {
  const long first = (long)get_global_id(0) * 256;
  const long last = min(first + 256, (long)SIZE);
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
