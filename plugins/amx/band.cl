// A band of the source as planes, all parts of it, in the slot of a work item.
//
// NHWC  slot[block of 32 channels][part][position][plane][32 channels]: a tile's rows are positions
// else  slot[block of 32 channels][part][pair of channels][plane][position][2]: a tile's rows are pairs of channels
//
// C channels of a group in BLOCKS; BAND_ROWS rows of positions; POSITIONS of a part, with what tiles read beyond
// PARTS parts of AREA bytes, PART_AT where they read
#if !NHWC
#define PLANE_ (4L * POSITIONS)
// Two channels. Vectors run over a row's end: the next row, or what follows the last one, is written later or not used.
void fill_pairs(global uchar *to, global const REAL *x, int begin, int end, int fw, long left, long other) {
  ONCE for (int q = 0; q < begin; q += 16)
    for (int plane = 0; plane < PLANES; ++plane) *(global pairs16 *)(to + plane * PLANE_ + 4 * q) = 0;
  ONCE for (int q = begin; q < end; q += 16) {
    const long at = (long)q * SW + fw;
    uint16 a[3], b[3];
    split(sixteen(x + at, left - at, min(16, end - q), SW), a);
    if (other) split(sixteen(x + other + at, left - other - at, min(16, end - q), SW), b);
    for (int plane = 0; plane < PLANES; ++plane)
      *(global pairs16 *)(to + plane * PLANE_ + 4 * q) = other ? (a[plane] >> 16) | b[plane] : a[plane] >> 16;
  }
  ONCE for (int q = end; q < QW; q += 16)
    for (int plane = 0; plane < PLANES; ++plane) *(global pairs16 *)(to + plane * PLANE_ + 4 * q) = 0;
}
#endif

void fill(global uchar *slot, global const REAL *x, long first, int g) {
  ONCE for (int part = 0; part < PARTS; ++part) {
    const int4 f = PART_AT[part];
    const int begin = clamp((-f.s2 + SW - 1) / SW, 0, QW), end = clamp((XW - f.s2 + SW - 1) / SW, begin, QW);
    global uchar *area = slot + part * AREA;
#if NHWC
    ONCE for (int row = 0; row < BAND_ROWS; ++row) {
      const long at = source_row(first + row, f.s0, f.s1);
      fill_positions(area + (long)row * QW * (PLANES * 64), PARTS * AREA, x + max(at, 0L) + (long)f.s2 * G + g * C,
                     at < 0 ? QW : begin, at < 0 ? QW : end, QW, (long)SW * G, C);
    }
#else
    const long plane = (long)XD * XH * XW;
    ONCE for (int pair = 0; pair < 16 * BLOCKS; ++pair) {
      const bool none = 2 * pair >= C;
      global uchar *to = area + pair / 16 * (PARTS * AREA) + pair % 16 * PLANES * PLANE_;
      ONCE for (int row = 0; row < BAND_ROWS; ++row) {
        const long at = source_row(first + row, f.s0, f.s1), from = max(at, 0L) + (none ? 0 : g * C + 2 * pair) * plane;
        fill_pairs(to + 4L * row * QW, x + from, at < 0 || none ? QW : begin, at < 0 || none ? QW : end, f.s2,
                   IMAGES * G * plane - from, 2 * pair + 1 < C ? plane : 0);
      }
    }
#endif
  }
}
