// y[n, o, p] = sum_i w[o, i] * x[n, i, p], float32, row-major, all memory the caller's.
#include <stddef.h>

void gemm1x1(const float *x, const float *w, float *y, size_t images, size_t in, size_t out, size_t pixels) {
  for (size_t n = 0; n < images; ++n)
    for (size_t o = 0; o < out; ++o) {
      float *row = y + (n * out + o) * pixels;
      for (size_t p = 0; p < pixels; ++p)
        row[p] = 0;
      for (size_t i = 0; i < in; ++i) {
        const float weight = w[o * in + i], *source = x + (n * in + i) * pixels;
        for (size_t p = 0; p < pixels; ++p)
          row[p] += weight * source[p];
      }
    }
}
