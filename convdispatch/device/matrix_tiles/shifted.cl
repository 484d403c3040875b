// Returns v 2^e, rounded only if the result is denormal. It takes two steps, because 2^e itself may exceed float32's
// range; -252 <= e <= 252 includes every shift of a float32 that stays in range.
inline float shifted(float v, int e) {
  e = min(max(e, -252), 252);
  return v * as_float((uint)(127 + e / 2) << 23) * as_float((uint)(127 + e - e / 2) << 23);
}
