// to[i] = activation((x[i] - mean[c]) scale[c] + shift[c]), c the channel of element i.
//
//   SIZE   elements of x
//   INNER  elements between two channels: pixels of an image for channels first, 1 for channels last
//   CHUNK  neighbouring elements of one work item: many for a CPU's core, one for a GPU's lane
//   START  offset of the first element that is written
#include <convdispatch/norm.cl>
kernel void normalise(global REAL *to, global const REAL *x, global const ACC *norm) {
  const long first = (long)get_global_id(0) * CHUNK;
  const long last = min(first + CHUNK, (long)SIZE);
  for (long i = first; i < last; ++i) STORE(to, START + i, normed(norm, LOAD(x, i), i / INNER % NORM_CHANNELS));
}
