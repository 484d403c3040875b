// Writes the planes of all parts of a band of the source into the slot of a work item.
//
//         slot[block of 32 channels][part][position][plane][32 channels]: a tile's rows are positions
// ACROSS  slot[block of 32 channels][part][pair of channels][plane][position][2]: a tile's rows are pairs of channels
//
// C channels of a group in BLOCKS; BAND_ROWS rows of positions; POSITIONS of a part, with what tiles read beyond
// PARTS parts of AREA bytes, PART_AT where they read; TAP_AT bytes of each phase's taps, TAPS of them, BEFORE those
// STEP  SW in the text, where vectors are along rows (NCHW)
// Bytes of the slot where each step begins for position 0: [phase][block][tap].
void list_steps(SIZES_IN global int *offsets) {
  ONCE for (int phase = 0; phase < PHASES; ++phase)
    ONCE for (int block = 0; block < BLOCKS; ++block)
      ONCE for (int tap = 0; tap < TAPS[phase]; ++tap) *offsets++ = block * PARTS * AREA + TAP_AT[BEFORE[phase] + tap];
}
// Offsets that the rows of the band are read from, and that the rows of each phase are written to (see rows.cl).
void list_sources(SIZES_IN global long *rows_at, int first, int fd, int fh) {
  int3 place = place_of(SIZES first);
  ONCE for (int row = 0; row < BAND_ROWS; ++row, place = next_place(SIZES place))
    rows_at[row] = source_at(SIZES place, fd, fh);
}
void list_targets(SIZES_IN global long *rows_at, int first, int rows, int phase) {
  int3 place = place_of(SIZES first);
  ONCE for (int row = 0; row < rows; ++row, place = next_place(SIZES place)) {
    const long at = target_at(SIZES place, PLACES[3 * phase], PLACES[3 * phase + 1]);
    rows_at[row] = at < 0 ? -1 : at + FIRST[phase];
  }
}
#if ACROSS
// Sixteen positions from q on of a row that starts at x[at]; those outside begin to end are zeros. whole: all sixteen may
// be read.
inline float16 sixteen_from(global const REAL *x, long at, int q, int begin, int end, bool whole) {
  if (whole) {
    const float16 v = sixteen(x + at, 16 * STEP, 16, STEP);
    if (q >= begin && q + 16 <= end) return v;
    const int16 lane = q + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return select((float16)(0), v, lane >= begin & lane < end);
  }
  union { float16 v; float s[16]; } u;
  u.v = 0;
  ONCE for (int i = max(begin - q, 0); i < min(end - q, 16); ++i) u.s[i] = LOAD(x, at + i * STEP);
  return u.v;
}
// Two channels, whose rows begin at x[rows_at] and ``other`` elements on, if any; x[least] to x[most] may be read.
void fill_pairs(SIZES_IN SCALE_IN global uchar *to, global const REAL *x, global const long *rows_at, int begin, int end,
                long least, long most, long other) {
  const int rows = BAND_ROWS, width = QW;
  const long plane_ = 4L * POSITIONS;
  ONCE for (int row = 0; row < rows; ++row, to += 4 * width) {
    const long row_at = rows_at[row];
    const int stop = row_at < 0 ? 0 : end;
    ONCE for (int q = 0; q < width; q += 16) {
      uint16 a[3], b[3];
      const long at = row_at + q * STEP;
      const bool whole = STEP <= 2 && at >= least && at + other + 16 * STEP <= most;
      split(SCALE sixteen_from(x, at, q, begin, stop, whole), a);
      split(SCALE sixteen_from(x, at + other, q, begin, other ? stop : 0, whole), b);
      for (int plane = 0; plane < PLANES; ++plane)
        *(global pairs16 *)(to + plane * plane_ + 4 * q) = a[plane] >> 16 | b[plane];
    }
  }
}
#elif !NHWC
// A row of 32 channels, of which some exist; they are ``plane`` elements apart and are transposed by sixteen positions.
void fill_row(SCALE_IN global uchar *to, global const REAL *x, int begin, int end, int width, long left, long plane,
              int channels) {
  ONCE for (int q = 0; q < width; ++q)
    if (q < begin || q >= end)
      for (int p = 0; p < PLANES; ++p) *(global pairs16 *)(to + (q * PLANES + p) * 64) = 0;
  ONCE for (int q = begin; q < end; q += 16) {
    const int n = min(16, end - q);
    uint16 v[PLANES][16];
    ONCE for (int i = 0; i < 16; ++i) {
      const long at = (long)q * STEP + 2 * i * plane;
      uint16 a[3] = {0, 0, 0}, b[3] = {0, 0, 0};
      if (2 * i < channels) split(SCALE sixteen(x + at, left - at, n, STEP), a);
      if (2 * i + 1 < channels) split(SCALE sixteen(x + at + plane, left - at - plane, n, STEP), b);
      for (int p = 0; p < PLANES; ++p) v[p][i] = (a[p] >> 16) | b[p];
    }
    for (int p = 0; p < PLANES; ++p) {
      transpose(v[p]);
      ONCE for (int i = 0; i < n; ++i) *(global pairs16 *)(to + ((q + i) * PLANES + p) * 64) = v[p][i];
    }
  }
}
#endif

void fill(SIZES_IN SCALE_IN global uchar *slot, global const REAL *x, global long *rows_at, int first, int g) {
  const int width = QW;
  ONCE for (int part = 0; part < PARTS; ++part) {
    const int fd = PART_AT[3 * part], fh = PART_AT[3 * part + 1], fw = PART_AT[3 * part + 2];
    const int begin = clamp((SW - 1 - fw) / SW, 0, width), end = clamp((XW - fw + SW - 1) / SW, begin, width);
    global uchar *area = slot + part * AREA;
    list_sources(SIZES rows_at, first, fd, fh);
#if !NHWC
    const long plane = (long)XD * XH * XW, size = IMAGES * G * plane;
#endif
#if ACROSS
    ONCE for (int pair = 0; pair < 16 * BLOCKS; ++pair) {
      const bool none = 2 * pair >= C;
      const long from = (none ? 0 : g * C + 2 * pair) * plane + fw;
      fill_pairs(SIZES SCALE area + pair / 16 * (PARTS * AREA) + pair % 16 * (4L * PLANES * POSITIONS), x + from, rows_at, begin,
                 none ? 0 : end, -from, size - from, 2 * pair + 1 < C ? plane : 0);
    }
#else
    ONCE for (int row = 0; row < BAND_ROWS; ++row) {
      const long at = rows_at[row], there = max(at, 0L);
      global uchar *to = area + (long)row * width * (PLANES * 64);
      const int from = at < 0 ? width : begin, stop = at < 0 ? width : end;
#if NHWC
      fill_positions(SCALE to, PARTS * AREA, x + there + (long)fw * G + g * C, from, stop, width, (long)SW * G, C);
#else
      ONCE for (int c = 0; c < C; c += 32, to += PARTS * AREA) {
        const long block = there + (g * C + c) * plane + fw;
        fill_row(SCALE to, x + block, from, stop, width, size - block, plane, min(32, C - c));
      }
#endif
    }
#endif
  }
}
