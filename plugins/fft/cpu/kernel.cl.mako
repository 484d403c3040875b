## spectrum[f][group][block][row] = transform of the kernels of LANES channels of the product's vectors, one summed channel.
//
// The tap at position j of the first axis is tap ${"(K0 - 1 - j / D0)" if flipped else "j / D0"} of the kernel.
//
// K0 K1 K2  taps, D? dilation, G? elements spanned, A? elements of w between taps, along the axes in their order
// LANE, ROW elements of w from vector lane to lane, from row to row; GROUP from group to group
${macros}
#define TAP(j, k, d) ${"((k) - 1 - (j) / (d))" if flipped else "((j) / (d))"}

__attribute__((noinline)) void ${name}_stage(V *restrict line, global const REAL *restrict from, int channels) {
  ONCE for (int j = 0; j < G0; ++j) line[j] = (V)(0.0f);
% if lane == 1:
  if (channels == LANES) {
    ONCE for (int j = 0; j < G0; j += D0) line[j] = SCALE * LOADV(from + TAP(j, K0, D0) * A0);
    return;
  }
% endif
  ONCE for (int l = 0; l < channels; ++l)
    ONCE for (int j = 0; j < G0; j += D0) ((float *)line)[j * LANES + l] = SCALE * LOAD(from, (long)l * LANE + TAP(j, K0, D0) * A0);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void ${name}(global const REAL *restrict w, global float *restrict panels, long off, int items, int g0, int groups,
             int b0, int blocks) {
  local float slot[SLOT_];
  V line[G0];
  const int jobs = groups * blocks * ROWS, item = get_global_id(0), last = (int)((item + 1L) * jobs / items);
  ONCE for (int job = (int)((long)item * jobs / items); job < last; ++job) {
    const int row = job % ROWS, block = job / ROWS % blocks, group = job / (ROWS * blocks);
    const int first = (b0 + block) * LANES, channels = min(LANES, N - first);
    global const REAL *from = w + (long)(g0 + group) * GROUP + (long)first * LANE + (long)row * ROW;
    global float *s = panels + off + ((long)(group * BLOCKS + block) * ROWS + row) * (2 * LANES);
    ONCE for (int j2 = 0; j2 < G2; ++j2)
      ONCE for (int j1 = 0; j1 < G1; ++j1) {
        ${name}_stage(line, from + TAP(j1, K1, D1) * A1 + TAP(j2, K2, D2) * A2, j1 % D1 || j2 % D2 ? 0 : channels);
        ${name}_line(line, ${"s" if depth == 1 else "slot + (j2 * N1 + j1) * (2 * LANES)" if depth == 3 else "slot + j1 * (2 * LANES)"});
      }
${passes}
  }
}
