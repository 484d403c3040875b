// A phase of the data gradient of a stride along one axis: the pixels first, first + STEP, ... of the target.
//
// size, stride, dilation, pad, kernel  the problem's numbers along the axis
// shared, inverse  gcd of stride and dilation, and the inverse of dilation / shared modulo stride / shared
typedef struct {
  int first, count, taps, tap0, origin;
} axis_phase;

inline axis_phase phase_along(int first, int size, int stride, int dilation, int pad, int kernel_size, int shared, int inverse) {
  const int tap_step = stride / shared, at = first + pad;
  const int tap0 = at % shared ? kernel_size : at / shared * inverse % tap_step;
  axis_phase phase = {first, (size - first + stride - 1) / stride, 0, 0, 0};
  if (tap0 < kernel_size) {
    phase.tap0 = tap0;
    phase.taps = (kernel_size - tap0 + tap_step - 1) / tap_step;
    phase.origin = (at - tap0 * dilation) / stride;
  }
  return phase;
}

// Taps of all phases before ``first``.
inline int taps_before(int first, int stride, int dilation, int pad, int kernel_size) {
  int taps = 0;
  for (int tap = 0; tap < kernel_size; ++tap) {
    const int rest = (tap * dilation - pad) % stride;
    taps += (rest < 0 ? rest + stride : rest) < first;
  }
  return taps;
}

#define PHASE_Z(first) phase_along(first, TARGET_SIZE_Z, STRIDE_Z, DILATION_Z, PAD_Z, KERNEL_Z, SHARED_Z, INVERSE_Z)
#define PHASE_Y(first) phase_along(first, TARGET_SIZE_Y, STRIDE_Y, DILATION_Y, PAD_Y, KERNEL_Y, SHARED_Y, INVERSE_Y)
#define PHASE_X(first) phase_along(first, TARGET_SIZE_X, STRIDE_X, DILATION_X, PAD_X, KERNEL_X, SHARED_X, INVERSE_X)
