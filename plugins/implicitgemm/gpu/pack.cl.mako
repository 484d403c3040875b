## packed[group][phase][m tile][slice][k][m] = w: the weights in the slices that a work group copies unchanged.
##
## One work item a (m, channel): it reads that pair's taps, neighbours write neighbouring m. What pads a tile is 0.
## PHASES_x, KERNEL_x, TAP0_x  phases, taps of the whole kernel and the first tap along an axis
% if f.phased:
${phases}\
% endif
kernel void pack(global const REAL *restrict w, global ACC *restrict packed NUMBERS) {
  const int m = get_global_id(0), c = get_global_id(1), group = get_global_id(2);
  if (m >= M_TILES * ${f.tile.bm} || c >= CHANNELS_PADDED) return;
  const int exists = m < TARGET_CHANNELS && c < SOURCE_CHANNELS;
  w += (long)group * GROUP_WEIGHTS + (long)m * WEIGHT_M + (long)c * WEIGHT_C;
  packed += (long)group * SLICES_ALL * PACKED_SLICE;
% if f.phased:
  for (int fz = 0; fz < PHASES_Z; ++fz)
  for (int fy = 0; fy < PHASES_Y; ++fy)
  for (int fx = 0; fx < PHASES_X; ++fx) {
    const axis_phase phase_z = PHASE_Z(fz), phase_y = PHASE_Y(fy), phase_x = PHASE_X(fx);
    const int taps_z = phase_z.taps, taps_y = phase_y.taps, taps_x = phase_x.taps;
    const int tap0_z = phase_z.tap0, tap0_y = phase_y.tap0, tap0_x = phase_x.tap0;
% else:
  {
    const int taps_z = TAPS_Z, taps_y = TAPS_Y, taps_x = TAPS_X, tap0_z = TAP0_Z, tap0_y = TAP0_Y, tap0_x = TAP0_X;
% endif
    const int volume = taps_z * taps_y * taps_x, slices = ${"SLICES" if f.run else "CHUNKS * volume"};
    int tap = 0;
    for (int z = tap0_z; z < tap0_z + taps_z * TAP_STEP_Z; z += TAP_STEP_Z)
    for (int y = tap0_y; y < tap0_y + taps_y * TAP_STEP_Y; y += TAP_STEP_Y)
    for (int x = tap0_x; x < tap0_x + taps_x * TAP_STEP_X; x += TAP_STEP_X, ++tap) {
% if f.run:
      const int slice = c * RUNS + tap / ${f.tile.bk}, k = tap % ${f.tile.bk};
% else:
      const int slice = c / ${f.tile.bk} * volume + tap, k = c % ${f.tile.bk};
% endif
      const long to = (((long)(m / ${f.tile.bm}) * slices + slice) * ${f.tile.bk} + k) * ${f.tile.bm} + m % ${f.tile.bm};
      packed[to] = exists ? LOAD(w, ((z * KERNEL_Y + y) * KERNEL_X + x) * WEIGHT_TAP) : (ACC)0;
    }
    packed += (long)slices * PACKED_SLICE;
  }
}
