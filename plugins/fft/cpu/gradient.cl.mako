## dw[oc, ic, tap] = inverse transform of spectrum[f][group][block][row] at the taps' positions; blocks of ic, rows of oc, or
## the other way round.
//
// K0 K1 K2  taps along the axes in their order, A? elements of dw between them
// LANE, ROW elements of dw from vector lane to lane, from row to row; GROUP from group to group; N channels along vectors
${macros}

__attribute__((noinline)) void put_taps(global REAL *restrict to, const V *restrict line, int channels) {
% if lane == 1:
  if (channels == LANES) {
    ONCE for (int j = 0; j < K0; ++j) {
      global REAL *tap = to + j * A0;
      STOREV(tap, SCALE * line[j]${" + LOADV(tap)" if accumulate else ""});
    }
    return;
  }
% endif
  ONCE for (int l = 0; l < channels; ++l)
    ONCE for (int j = 0; j < K0; ++j) {
      global REAL *tap = to + (long)l * LANE + j * A0;
      STORE(tap, 0, SCALE * ((const float *)(line + j))[l]${" + LOAD(tap, 0)" if accumulate else ""});
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gradient(global REAL *restrict w, global const float *restrict panels, long off, int items, int g0, int groups,
              int b0, int blocks, int row0, int rows) {
  local float slot[SLOT_];
  V line[K0];
  const int jobs = groups * blocks * rows, item = get_global_id(0), last = (int)((item + 1L) * jobs / items);
  ONCE for (int job = (int)((long)item * jobs / items); job < last; ++job) {
    const int row = job % rows, block = job / rows % blocks, group = job / (rows * blocks);
    const int first = (b0 + block) * LANES, channels = min(LANES, N - first);
    global REAL *to = w + (long)(g0 + group) * GROUP + (long)first * LANE + (long)(row0 + row) * ROW;
    global const float *s = panels + off + ((long)(group * BLOCKS + block) * ROWS + row) * (2 * LANES);
${passes}
    ONCE for (int j2 = 0; j2 < K2; ++j2)
      ONCE for (int j1 = 0; j1 < K1; ++j1) {
        inverse_line(${"s" if depth == 1 else "slot + (j2 * N1 + j1) * (2 * LANES)" if depth == 3 else "slot + j1 * (2 * LANES)"}, line);
        put_taps(to + j1 * A1 + j2 * A2, line, channels);
      }
  }
}
