## Converts float32 to and from the format's 16-bit type: rounds to nearest even, and to infinity beyond its range.
% if tiling.format.bfloat:
#include <convdispatch/bfloat16.cl>
inline float widen(ushort h) { return convert_as_bfloat16_float(h); }
inline ushort narrow(float v) { return convert_bfloat16_as_ushort(v); }
% else:
inline float widen(ushort h) { return cvt_f32_f16(h); }
inline ushort narrow(float v) { return cvt_f16_f32(v); }
% endif
