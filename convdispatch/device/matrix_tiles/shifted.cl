// v 2^e, rounded only where the result is denormal. In two steps, since 2^e itself may be no float; -252 <= e <= 252 holds
// every shift of a float32 that stays in its range.
inline float shifted(float v, int e) {
  e = min(max(e, -252), 252);
  return v * as_float((uint)(127 + e / 2) << 23) * as_float((uint)(127 + e - e / 2) << 23);
}
