// to[i] = activation((x[i] - mean[c]) scale[c] + shift[c]), c the channel of element i.
//
//   SIZE   elements of x
//   INNER  elements between two channels: pixels of an image for channels first, 1 for channels last
//   CHUNK  neighbouring elements of one work item: many for a CPU's core, few for a GPU's lane
//   QUADS  1: a work item's four elements are of one channel, or, with INNER 1, of four neighbouring channels of a pixel
//   START  offset of the first element that is written
#include <convdispatch/vectors.cl>
#include <convdispatch/norm.cl>
kernel void normalise(global REAL *to, global const REAL *x, global const ACC *norm) {
  const long first = (long)get_global_id(0) * CHUNK;
#if QUADS
  const int c = first / INNER % NORM_CHANNELS;
  const ACC4 v = LOAD4(x + first);
  STORE4(to + START + first, INNER == 1 ? normed4_channels(norm, v, c) : normed4(norm, v, c));
#else
  const long last = min(first + CHUNK, (long)SIZE);
  for (long i = first; i < last; ++i) STORE(to, START + i, normed(norm, LOAD(x, i), i / INNER % NORM_CHANNELS));
#endif
}
