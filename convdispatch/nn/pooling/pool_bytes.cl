// Means over windows of bytes, in bytes, on CPUs with channels last (windows and macros: pool_windows.cl):
// y[o] = saturate(rint(mean of (x - ZERO) * SCALE over the window of o / Y_SCALE) + Y_ZERO), rounding by rounding as
// a dequantization, the mean of float32 and a quantization. A work item is one row of windows of an image.
//
// Values the host defines besides:
//   LANES         16, 8 or 4, at most CHANNELS, or 1: so many channels at once
//   REAL RESULT   uchar or char, of x and y
//   SCALE ZERO Y_SCALE Y_ZERO LOW HIGH   numbers of bytes; bounds of y less Y_ZERO

#pragma OPENCL FP_CONTRACT OFF
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if LANES == 1
#define OF(type) type
#define TAKE(p) *(p)
#define GIVE(v, p) *(p) = (v)
#else
#define OF(type) JOIN(type, LANES)
#define TAKE(p) JOIN(vload, LANES)(0, p)
#define GIVE(v, p) JOIN(vstore, LANES)(v, 0, p)
#endif
#define NUMBERS OF(convert_float)

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void pool(global const REAL *restrict x, const long offset,
                                                                global RESULT *restrict y) {
  const int oy = get_global_id(0) % OH;
  const long image = get_global_id(0) / OH;
  x += offset + image * (IH * IW) * CHANNELS;
  y += image * (OH * OW) * CHANNELS;
  for (int ox = 0; ox < OW; ++ox)
    for (int next = 0; next < CHANNELS; next += LANES) {
      const int channel = min(next, CHANNELS - LANES);  // the last lanes begin early enough to end with the channels
      OF(float) sum = 0;
      _Pragma("unroll") for (int ky = 0; ky < KH; ++ky)
        _Pragma("unroll") for (int kx = 0; kx < KW; ++kx) {
          const int iy = oy * SH - PH + ky * DH, ix = ox * SW - PW + kx * DW;
          if (!INSIDE && (iy < 0 || iy >= IH || ix < 0 || ix >= IW)) continue;  // for all lanes alike
          const OF(float) number = NUMBERS(TAKE(x + (iy * IW + ix) * (long)CHANNELS + channel)) - ZERO;
          sum += number * SCALE;
        }
      sum /= count_of(oy, ox);
      const OF(float) rounded = clamp(rint(sum / Y_SCALE), (OF(float))(LOW), (OF(float))(HIGH)) + Y_ZERO;
      GIVE(OF(JOIN(convert_, RESULT))(rounded), y + (oy * OW + ox) * (long)CHANNELS + channel);
    }
}
