// y[p, n] = epilogue(sum over taps and bytes of slot[p + tap] packed[n, tap]): matrix registers, 32 positions by 32 channels.
//
// the problem's letters; NHWC 1: NHWC; band.cl's
// IN_PLACE      1: x's pixels are the positions, read where they are; otherwise a band of x is in the slot
// ROW           bytes from position to position; PLACES positions from row to row; TILE positions of a tile
// OFFSETS       where taps begin
// ROWS PARTS    rows of y (IN_PLACE: positions) of a band, bands of an image
// PER SHARES    panels of 32 channels of a share of them, and shares
// FINISH        1: y is of bytes, NHWC, and is finished by instructions (``byte_finish``)
// ITEMS JOBS SLOT SUMS_AT  work items, jobs; bytes of a slot and before its sums
inline void product(global const uchar *a, global const uchar *b, global int *sums, int positions, int channels) {
  if (positions > 16) {
    if (channels > 16) tile22(a, b, OFFSETS, TAPS, sums);
    else tile21(a, b, OFFSETS, TAPS, sums);
  } else if (channels > 16) tile12(a, b, OFFSETS, TAPS, sums);
  else tile11(a, b, OFFSETS, TAPS, sums);
}

#if FINISH
// to[p]: the offset of position p in a band of y, or -1.
inline void finish_places(global long *to, int positions) {
  ONCE for (int p = 0; p < positions; ++p) {
#if IN_PLACE
    to[p] = (long)p * OC;
#else
    to[p] = p % PLACES < OW ? (long)(p / PLACES * OW + p % PLACES) * OC : -1L;
#endif
  }
}
#endif

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS,
          global uchar *workspace) {
  const int item = get_global_id(0), zero = X_ZERO(table);
  global uchar *slot = workspace + item * SLOT;
  global int *sums = (global int *)(slot + SUMS_AT), *shift = sums + TILE * 32;
  global float *scale = (global float *)(shift + 32);
#if FINISH
  global int *numbers = shift + 64;
  global long *to = (global long *)(numbers + 32);
  const bool quick = !RESIDUAL || table[13];
  finish_numbers(numbers, TABLE_ARGS);
  finish_places(to, POSITIONS);
#endif
  const long last = (item + 1L) * JOBS / ITEMS;
  int band_there = -1;
  w += w_at;
  TILES_BEGIN();
  ONCE for (long job = item * JOBS / ITEMS; job < last; ++job) {
    const int share = job % SHARES, band = job / SHARES, part = band % PARTS;
#if IN_PLACE
    const int g = 0, first = part * ROWS, positions = min(ROWS, MB * OD * OH * OW - first), tail = (positions - 1) / TILE * TILE;
    const bool ends = first + positions == MB * OD * OH * OW;
    if (band != band_there && ends)  // what a tile reads beyond its last row is not x's
      ONCE for (int i = 0; i < (positions - tail) * IC; ++i) slot[i] = x[(long)(first + tail) * IC + i];
#else
    const int od = band / PARTS % OD, g = band / (PARTS * OD) % G, image = band / (PARTS * OD * G), oh = part * ROWS;
    const int rows = min(ROWS, OH - oh), positions = (rows - 1) * PLACES + OW;
    if (band != band_there) fill(slot, x, image, g, od, oh, (uchar)zero ^ FLIP);
#endif
    band_there = band;
    ONCE for (int panel = share * PER; panel < min(PANELS, (share + 1) * PER); ++panel) {
      const int n0 = 32 * panel, channels = min(32, OCG - n0);
      global const uchar *weights = w + ((long)g * PANELS + panel) * PANEL;
      global const int *w_sums = (global const int *)(w + W_SUMS) + (g * PANELS + panel) * 32;
      ONCE for (int j = 0; j < 32; ++j) {
        const int n = g * OCG + n0 + min(j, channels - 1);
        shift[j] = (int)((uint)BIASES(table)[n] - (uint)(zero + (FLIP ? 128 : 0)) * (uint)w_sums[j]);
        scale[j] = MULTIPLIERS(table)[n];
      }
#if FINISH
      numbers[10] = channels >= 16 ? 0xffff : (1 << channels) - 1;
      numbers[11] = channels >= 32 ? 0xffff : channels > 16 ? (1 << (channels - 16)) - 1 : 0;
#endif
      const int16 shift0 = vload16(0, shift), shift1 = vload16(1, shift);
      const float16 scale0 = vload16(0, scale), scale1 = vload16(1, scale);
#if IN_PLACE
      ONCE for (int p = 0; p < positions; p += TILE) {
        global const uchar *at = ends && p == tail ? (global const uchar *)slot : x + (long)(first + p) * IC;
        const int here = min(TILE, positions - p);
        product(at, weights, sums, here, channels);
#if FINISH
        if (quick) {
          FINISH_BYTES(sums, shift, to + p, here, (long)first * OC + n0);
          continue;
        }
#endif
        ONCE for (int i = 0; i < here; ++i) {
          const long to = (long)(first + p + i) * OC + n0;
          put16(y, TABLE_ARGS, vload16(2 * i, sums) + shift0, scale0, to, channels);
          if (channels > 16) put16(y, TABLE_ARGS, vload16(2 * i + 1, sums) + shift1, scale1, to + 16, channels - 16);
        }
      }
#else
#if NHWC
      const long begin = (((long)image * OD + od) * OH + oh) * OW * OC + g * OCG + n0;
#else
      const long begin = (((long)image * OC + g * OCG + n0) * OD + od) * OH * OW + oh * OW;
#endif
      int row = 0, column = 0;
      ONCE for (int p = 0; p < positions; p += TILE) {
        const int here = min(TILE, positions - p);
        product(slot + p * ROW, weights, sums, here, channels);
#if FINISH
        if (quick) {
          FINISH_BYTES(sums, shift, to + p, here, begin);
          continue;
        }
#endif
        ONCE for (int i = 0; i < here; ++i) {
          if (column < OW) {
            const long to = begin + (long)(row * OW + column) * (NHWC ? OC : 1);
            put16(y, TABLE_ARGS, vload16(2 * i, sums) + shift0, scale0, to, channels);
            if (channels > 16)
              put16(y, TABLE_ARGS, vload16(2 * i + 1, sums) + shift1, scale1, to + 16 * CHANNEL, channels - 16);
          }
          if (++column == PLACES) column = 0, ++row;
        }
      }
#endif
    }
  }
  TILES_END();
}
