## target[image, g, n, pixel] = activation(sum + bias + residual [+ target]) for a band of pixels and NVL channels.
//
// The sums are in the slot as [pixel][NVL]. NHWC writes a pixel's vectors unchanged; NCHW transposes LANES x LANES squares
// in registers, so that neighbours along w are written together.
#include <convdispatch/output_lanes.cl>
#define PLANE ((long)ZD * ZH * ZW)

__attribute__((noinline))
void finish(OUT_PARAMS, global const ACC *sums, int image, int g, int n0, int z, int y0, int rows,
            int ud, int uh, int uw) {
  const int count = min(NVL, N - n0);
% if fold > 1:
  // n counts (j, channel), and column * FOLD + j is the pixel.
  ONCE for (int n = 0; n < count; ++n) {
    const int j = (n0 + n) / (N / FOLD), channel = (n0 + n) % (N / FOLD);
    ONCE for (int row = 0; row < rows; ++row)
      ONCE for (int column = 0; column * FOLD + j < YW_ALL; ++column) {
        const long at = ((long)(z * UD + ud) * ZH + (y0 + row) * UH + uh) * ZW + (column * FOLD + j) * UW + uw;
% if inter:
        const long p = ((long)image * PLANE + at) * (N / FOLD * G) + g * (N / FOLD) + channel;
% else:
        const long p = (((long)image * G + g) * (N / FOLD) + channel) * PLANE + at;
% endif
        put_one(OUT_ARGS, p, sums[(row * YW + column) * NVL + n], ${"LOAD(bias, g * (N / FOLD) + channel)" if bias else "0"});
      }
  }
% elif inter:
  ONCE for (int row = 0; row < rows; ++row) {
    long p = (((long)image * ZD + z * UD + ud) * ZH + (y0 + row) * UH + uh) * ZW + uw;
    p = p * (N * G) + g * N + n0;
    ONCE for (int column = 0; column < YW; ++column, p += UW * N * G, sums += NVL) {
      int n = 0;
      ONCE for (; n + LANES <= count; n += LANES)
        put_vector(OUT_ARGS, p + n, LOADW(sums + n), ${"LOADV(bias + g * N + n0 + n)" if bias else "0"});
      ONCE for (; n < count; ++n) put_one(OUT_ARGS, p + n, sums[n], ${"LOAD(bias, g * N + n0 + n)" if bias else "0"});
    }
  }
% else:
  const long p0 = (((long)image * G + g) * N + n0) * PLANE + (long)(z * UD + ud) * (ZH * ZW);
% if dense:
  const int places = rows * YW;
  global const ACC *s = sums;
  long p = p0 + (long)y0 * YW;
  int q = 0;
  ONCE for (; q + LANES <= places; q += LANES, s += LANES * NVL, p += LANES)
    ONCE for (int n = 0; n < count; n += LANES) {
% for i in range(lanes):
      const V t0_${i} = LOADW(s + ${i} * NVL + n);
% endfor
<% stages = lanes.bit_length() - 1 %>\
${transposed(lanes)}
% for i in range(lanes):
      if (n + ${i} < count)
        put_vector(OUT_ARGS, p + (n + ${i}) * PLANE, t${stages}_${i}, ${f"LOAD(bias, g * N + n0 + n + {i})" if bias else "0"});
% endfor
    }
  ONCE for (; q < places; ++q, s += NVL, ++p)
    ONCE for (int n = 0; n < count; ++n)
      put_one(OUT_ARGS, p + n * PLANE, s[n], ${"LOAD(bias, g * N + n0 + n)" if bias else "0"});
% else:
  ONCE for (int n = 0; n < count; ++n)
    ONCE for (int row = 0; row < rows; ++row) {
      const long p = p0 + n * PLANE + ((long)(y0 + row) * UH + uh) * ZW + uw;
      ONCE for (int column = 0; column < YW; ++column)
        put_one(OUT_ARGS, p + column * UW, sums[(row * YW + column) * NVL + n], ${"LOAD(bias, g * N + n0 + n)" if bias else "0"});
    }
% endif
% endif
}
