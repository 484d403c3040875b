// x[image, g, f + s q] = epilogue(sum over t of w[g, k0 + t s'] y[image, g, q + origin - t d']): the data gradient of one
// channel a group and a stride, NCHW on a CPU, all phases f of the stride in one launch. A work item copies one
// zero-padded plane of y at a time into its part of the workspace, so that every tap is a plain vector load without a
// test; a row's phases are summed side by side and distributed in turn as they are stored.
//
// ITEMS         work items; each takes every ITEMS-th plane
// EZ EY PITCH   rows of a padded plane along d and h, elements of a row; ZERO_Z ZERO_Y ZERO_X its first element's position in y
// X? Y? S?      sizes of x and y, the stride; G channels, TAPS of the kernel
#include <convdispatch/first_lanes.cl>
inline void fill(global const REAL *restrict y, global ACC *restrict plane) {
  for (int ez = 0; ez < EZ; ++ez)
    for (int ey = 0; ey < EY; ++ey, plane += PITCH) {
      const int iz = ez + ZERO_Z, iy = ey + ZERO_Y;
      const int inside = (uint)iz < YD && (uint)iy < YH;
      const int begin = inside ? ${low} : PITCH, end = inside ? ${high} : PITCH;
      global const REAL *row = y + ((long)iz * YH + iy) * YW + ZERO_X;
      for (int j = 0; j < begin; ++j) plane[j] = 0;
      for (int j = begin; j < end; ++j) plane[j] = LOAD(row, j);
      for (int j = end; j < PITCH; ++j) plane[j] = 0;
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void phases(global const REAL *restrict y, global const REAL *restrict w, OUT_PARAMS, global ACC *restrict workspace) {
  global ACC *plane = workspace + (long)get_global_id(0) * (EZ * EY * PITCH);
  for (int job = get_global_id(0); job < IMAGES * G; job += ITEMS) {
    const int g = job % G;
    fill(y + (long)job * (YD * YH * YW), plane);
    global const REAL *own = w + (long)g * TAPS;
% for t in sorted({tap for row in rows for phase in row.phases for tap, _ in phase}):
    const ACC w${t} = LOAD(own, ${t});
% endfor
    const ACC b = ${"LOAD(bias, g)" if bias else "0"};
% for row in rows:
    ONCE for (int qz = 0; qz < ${row.count[0]}; ++qz)
      ONCE for (int qy = 0; qy < ${row.count[1]}; ++qy) {
        global const ACC *from = plane + (qz * EY + qy) * PITCH;
        const long at = (((long)job * XD + qz * SD + ${row.first[0]}) * XH + qy * SH + ${row.first[1]}) * XW;
        ONCE for (int q = 0; q < ${row.count[2]}; q += LANES) {
          union { V v[SW]; ACC s[SW * LANES]; } u;
% for f in range(step):
          {
            V sum = 0;
% for tap, offset in (row.phases[f] if f < len(row.phases) else ()):
            sum = w${tap} * LOADW(from + q + ${offset}) + sum;
% endfor
            u.v[${f}] = sum;
          }
% endfor
          const long p = at + q * SW;
          const int n = min(SW * LANES, XW - q * SW);
% if step == 2:
          put_pairs(OUT_ARGS, p, u.v[0], u.v[1], n, b);
% else:
          ONCE for (int j = 0; j < n; ++j) put_one(OUT_ARGS, p + j, u.s[j % SW * LANES + j / SW], b);
% endif
        }
      }
% endfor
  }
}
