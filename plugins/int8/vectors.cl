// y[p, n] = epilogue(sum over taps and bytes of slot[p + tap] packed[n, tap]): vectors, a few positions by 32 channels.
//
// the problem's letters; NHWC 1: NHWC; band.cl's
// IN_PLACE      1: x's pixels are read where they are; FLAT 1: all pixels of y are one row
// ROWS PARTS    rows of y (FLAT: pixels) of a job, and such parts of an image
// DOWN ACROSS   rows and columns of a tile; A_ROW A_COLUMN bytes of x from row to row and from column to column of y
// BLOCK         tiles that are computed for all panels before others are
// OFFSETS       where taps begin
// PER SHARES    panels of 32 channels of a share of them, and shares; LAST channels of a group's last panel
// WHOLE REST    (whether a panel is the last, ...): functions of instructions for whole tiles, and for those at an end
// AHEAD         bytes of weights to come that a step brings into the cache; NEXT of them are nearer where a tile is alone
// FINISH        1: they write bytes of y; otherwise 32 sums a position, into SUMS
// ITEMS JOBS SLOT NUMBERS_AT  work items, jobs; bytes of a slot and before its numbers; NUMBER(word) a number's pixel
#define PRODUCT(full, ...) ((full) ? WHOLE(__VA_ARGS__) : REST(__VA_ARGS__))

// Shifts and scales of panels from..stop-1 of a group.
void channels_of(global int *to, global const int *w_sums, global const int *table, int g, int from, int stop) {
  const int zero = X_ZERO(table) + (FLIP ? 128 : 0);
  ONCE for (int panel = from; panel < stop; ++panel, to += 64) {
    const int n0 = g * OCG + 32 * panel;
    global const int *from_w = w_sums + (g * PANELS + panel) * 32;
    if (32 * panel + 32 <= OCG) {
      for (int j = 0; j < 2; ++j) {
        const uint16 shift = as_uint16(vload16(j, BIASES(table) + n0)) - (uint)zero * as_uint16(vload16(j, from_w));
        vstore16(as_int16(shift), j, to);
        vstore16(vload16(j, MULTIPLIERS(table) + n0), j + 2, (global float *)to);
      }
      continue;
    }
    ONCE for (int j = 0; j < 32; ++j) {
      const int n = min(n0 + j, g * OCG + OCG - 1);
      to[j] = (int)((uint)BIASES(table)[n] - (uint)zero * (uint)from_w[j]);
      ((global float *)to)[32 + j] = MULTIPLIERS(table)[n];
    }
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const uchar *restrict x, global const uchar *restrict w, long w_at, global OUT *restrict y, TABLE_PARAMS,
          global uchar *workspace) {
  const int item = get_global_id(0), zero = X_ZERO(table);
  global uchar *slot = workspace + item * SLOT;
  global int *numbers = (global int *)(slot + NUMBERS_AT), *sums = numbers + NUMBER_sums, *channels = sums + DOWN * ACROSS * 32;
#if FINISH
  numbers_of(numbers, TABLE_ARGS);
  const bool quick = !RESIDUAL || table[13];
#else
  const bool quick = false;
#endif
  const long last = (item + 1L) * JOBS / ITEMS;
  int band_there = -1, channels_there = -1;
  w += w_at;
  ONCE for (long job = item * JOBS / ITEMS; job < last; ++job) {
    const int share = job % SHARES, band = job / SHARES, part = band % PARTS;
    const int from = share * PER, stop = min(PANELS, from + PER);
#if FLAT
    const int g = band / PARTS, first = part * ROWS, width = min(ROWS, MB * OD * OH * OW - first), rows = 1;
    global const uchar *a = x + (long)first * IC + g * ICG;
    const long begin = (long)first * OC + g * OCG;
#else
    const int od = band / PARTS % OD, g = band / (PARTS * OD) % G, image = band / (PARTS * OD * G), oh = part * ROWS;
    const int rows = min(ROWS, OH - oh), width = OW;
#if IN_PLACE
    global const uchar *a = x + (((long)image * ID + od * SD) * IH + oh * SH) * (IW * IC) + g * ICG;
#else
    global const uchar *a = slot;
    if (band != band_there) fill(slot, x, image, g, od, oh, (uchar)zero ^ FLIP);
    band_there = band;
#endif
#if NHWC
    const long begin = (((long)image * OD + od) * OH + oh) * OW * OC + g * OCG;
#else
    const long begin = (((long)image * OC + g * OCG) * OD + od) * OH * OW + oh * OW;
#endif
#endif
    if (channels_there != g * SHARES + share) channels_of(channels, (global const int *)(w + W_SUMS), table, g, from, stop);
    channels_there = g * SHARES + share;
    const int across = (width + ACROSS - 1) / ACROSS, tiles = (rows + DOWN - 1) / DOWN * across;
    ONCE for (int block = 0; block < tiles; block += BLOCK)
      ONCE for (int panel = from; panel < stop; ++panel) {
        global const uchar *weights = w + ((long)g * PANELS + panel) * PANEL;
        global const int *mine = channels + (panel - from) * 64;
        ONCE for (int tile = block; tile < min(tiles, block + BLOCK); ++tile) {
          const int row = FLAT ? 0 : tile / across * DOWN, column = (FLAT ? tile : tile % across) * ACROSS;
          const bool full = row + DOWN <= rows && column + ACROSS <= width, ends = panel == PANELS - 1;
          global const uchar *from_a = a + (long)row * A_ROW + (long)column * A_COLUMN;
          // The tiles of a panel together prefetch the next panel's bytes; a single tile prefetches its own, shortly before use.
          global const uchar *ahead = weights + (AHEAD == 128 ? NEXT : PANEL + tile % (128 / max(1, AHEAD)) * (PANEL / 128 * AHEAD));
          const long to = begin + (long)(row * (FLAT ? 0 : OW) + column) * (NHWC ? OC : 1) + 32 * panel * (long)CHANNEL;
#if FINISH
#if RESIDUAL
          PRODUCT(full, ends, from_a, weights, ahead, OFFSETS, TAPS, mine, numbers, (global char *)(y + to), (global const char *)(residual + to));
#else
          PRODUCT(full, ends, from_a, weights, ahead, OFFSETS, TAPS, mine, numbers, (global char *)(y + to));
#endif
#else
          PRODUCT(full, ends, from_a, weights, ahead, OFFSETS, TAPS, sums);
#endif
          if (quick) continue;
          const int count = ends ? LAST : 32;
          const int16 shift0 = FINISH ? 0 : vload16(0, mine), shift1 = FINISH ? 0 : vload16(1, mine);
          const float16 scale0 = vload16(2, (global const float *)mine), scale1 = vload16(3, (global const float *)mine);
          const int right = min(ACROSS, width - column), down = min(DOWN, rows - row);
          ONCE for (int i = 0; i < right * down; ++i) {
            const long there = to + (long)(i / right * (FLAT ? 0 : OW) + i % right) * (NHWC ? OC : 1);
            put16(y, TABLE_ARGS, vload16(2 * i, sums) + shift0, scale0, there, count);
            if (count > 16) put16(y, TABLE_ARGS, vload16(2 * i + 1, sums) + shift1, scale1, there + 16 * CHANNEL, count - 16);
          }
        }
      }
  }
}
