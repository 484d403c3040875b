// out[i] = activation(fresh[i] + bias[channel(i)] + residual[i]) [+ out[i]]: what a solver's own kernels left to do.
// fresh is out itself unless ACCUMULATE.
//
//   SIZE      elements of out
//   INNER     elements between two channels: pixels of an image for channels first, 1 for channels last
//   CHANNELS  length of bias
//   CHUNK     neighbouring elements of one work item: many for a CPU's core, one for a GPU's lane
//   NORM_SLOPE  1: a norm's gradient follows, from the saved x and the table norm
#include <convdispatch/epilogue.cl>
#include <convdispatch/norm.cl>
kernel void epilogue(global REAL *out, global const REAL *fresh, global const REAL *bias, global const REAL *residual,
                     global const ACC *norm, global const REAL *saved) {
  const long first = (long)get_global_id(0) * CHUNK;
  const long last = min(first + CHUNK, (long)SIZE);
  for (long i = first; i < last; ++i) {
    ACC v = LOAD(fresh, i);
    EPILOGUE(ACC, v, LOAD(bias, (i / INNER) % CHANNELS), LOAD(residual, i), LOAD(out, i))
    TIMES_SLOPE(v, i, (i / INNER) % CHANNELS)
    STORE(out, i, v);
  }
}
