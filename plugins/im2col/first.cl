// Loads LANES elements from p on, of which n exist; the others are zeros.
#include <convdispatch/lanes.cl>
inline V load_first(global const REAL *p, int n) {
  if (n >= LANES) return LOADV(p);
  union { V v; ACC s[LANES]; } u;
  u.v = 0;
  for (int j = 0; j < n; ++j) u.s[j] = LOAD(p, j);
  return u.v;
}
