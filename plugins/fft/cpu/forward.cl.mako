## spectrum[f][group][block][row] = transform of a tile of a tensor, LANES channels at a time.
//
// Work items share the jobs (group, block, row). A job stages the tile line by line, zeros where it leaves the tensor,
// transforms each line into the slot, then the slot's columns into the spectrum.
//
// X0 X1 X2  the tensor's size along the axes in the order of their transforms; A0 A1 A2 elements between neighbours
// N0 N1 N2  points of the transform, G0 G1 G2 elements given; S? step of a tile, T? tiles, P? zeros before the tensor
// C, G      channels per group, groups; PLANE elements of a channel; CHANNEL elements between channels
// BLOCKS, ROWS, STRIDE  the panel: blocks of a group, rows of a block, floats from frequency to frequency
// SLOT_     floats of a slot, LINES floats of the slot between frequencies of the first axis
${macros}

// Elements begin to end of a line, zeros around them. The next line is prefetched during the transform.
__attribute__((noinline)) void ${name}_stage(V *restrict line, global const REAL *restrict from, long at, int channels, int begin, int end) {
% if unit:
  ONCE for (int p = begin; p < end; p += 64 / (int)sizeof(REAL))
    ONCE for (int l = 0; l < channels; ++l) PREFETCH(from + at + (long)A1 + l * (long)CHANNEL + p, 0);
  ONCE for (int p = 0; p < G0; p += LANES) {
    if (begin >= p + LANES || end <= p) continue;
    V square[LANES];
    // A vector may extend beyond the row, because those lanes are dropped, but not beyond the tensor.
    if (at + p >= 0 && at + (channels - 1) * (long)CHANNEL + p + LANES <= TOTAL)
      ONCE for (int l = 0; l < LANES; ++l) square[l] = LOADV(from + at + min(l, channels - 1) * (long)CHANNEL + p);
    else
      ONCE for (int l = 0; l < LANES; ++l)
        ONCE for (int j = max(begin - p, 0); j < min(end - p, LANES); ++j)
          ((float *)(square + l))[j] = LOAD(from, at + min(l, channels - 1) * (long)CHANNEL + p + j);
    transpose(square, line + p, (V)(0.0f));
  }
% elif inter:
  ONCE for (int j = begin; j < end; ++j) {
    const long p = at + (long)j * A0;
    PREFETCH(from + p + A1, 0);
    if (p + LANES <= TOTAL) line[j] = LOADV(from + p);
    else
      ONCE for (int l = 0; l < LANES; ++l) ((float *)(line + j))[l] = LOAD(from, p + min(l, channels - 1));
  }
% else:
  ONCE for (int j = begin; j < end; ++j)
    ONCE for (int l = 0; l < LANES; ++l)
      ((float *)(line + j))[l] = LOAD(from, at + min(l, channels - 1) * (long)CHANNEL + (long)j * A0);
% endif
  ONCE for (int j = 0; j < begin; ++j) line[j] = (V)(0.0f);
  ONCE for (int j = end; j < G0; ++j) line[j] = (V)(0.0f);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void ${name}(global const REAL *restrict from, global float *restrict panels, long off, int items, int g0, int groups,
             int b0, int blocks, int r0, int rows) {
  local float slot[SLOT_];
  V line[LINE];
  const int jobs = groups * blocks * rows, item = get_global_id(0), last = (int)((item + 1L) * jobs / items);
  ONCE for (int job = (int)((long)item * jobs / items); job < last; ++job) {
    const int row = job % rows, block = job / rows % blocks, group = job / (rows * blocks);
    const int image = (r0 + row) / TILES, tile = (r0 + row) % TILES;
    const int s0 = TILE0(tile) * S0 - P0, s1 = TILE1(tile) * S1 - P1, s2 = TILE2(tile) * S2 - P2;
    const int first = (b0 + block) * LANES, channels = min(LANES, C - first);
    const long base = ${"(long)image * PLANE * (C * G) + (g0 + group) * C + first" if inter else "((long)(image * G + g0 + group) * C + first) * PLANE"};
    const int begin = clamp(-s0, 0, G0), end = clamp(X0 - s0, begin, G0);
    global float *s = panels + off + ((long)(group * BLOCKS + block) * ROWS + row) * (2 * LANES);
    ONCE for (int j2 = 0; j2 < G2; ++j2)
      ONCE for (int j1 = 0; j1 < G1; ++j1) {
        const int y1 = s1 + j1, y2 = s2 + j2, inside = (uint)y1 < X1 && (uint)y2 < X2;
        ${name}_stage(line, from, base + (long)s0 * A0 + (long)y1 * A1 + (long)y2 * A2, channels, inside ? begin : G0, inside ? end : G0);
        ${name}_line(line, ${"s" if depth == 1 else "slot + (j2 * N1 + j1) * (2 * LANES)" if depth == 3 else "slot + j1 * (2 * LANES)"});
      }
${passes}
  }
}
