// y[p, n] = finished(sum over taps and bytes of slot[p + tap] packed[n, tap]): tiles of positions by 32 channels.
//
// the problem's letters; NHWC 1: channels last
// IN_PLACE      1: x's pixels are the positions, read where they are; otherwise a band of x lies in the slot (band.py):
// PIXEL LINE AREA HALF_ROWS STEP_H SKIP_H SKIP_W COLUMNS BAND_ROWS HALVES PLACES  its sizes in bytes, rows and columns
// FLIP          what bytes are combined with on their way there: 0x80 makes them unsigned
// ROW           bytes from position to position; TILE positions of a tile
// TAPS STEPS UNIT PANEL  taps, steps of UNIT bytes in each, bytes of a panel's weights; OFFSETS where taps begin
// ROWS PARTS    rows of y (IN_PLACE: positions) of a band, bands of an image
// PANELS PER SHARES  panels of 32 channels of a group, of a share of them, and shares
// FINISH        1: y is of bytes, channels last, and is finished by instructions (``byte_finish``)
// ITEMS JOBS SLOT SUMS_AT W_SUMS  work items, jobs; bytes of a slot and before its sums; of weights before their sums
typedef uint16 __attribute__((aligned(1))) line;

#if !IN_PLACE
// Pixels from..stop-1 of a row, whose first byte of the group is x[at]; others are zero points.
void fill_row(global uchar *to, global const uchar *x, bool there, uchar zero) {
  const int begin = there ? clamp((PW + SKIP_W - 1) / SKIP_W, 0, COLUMNS) : COLUMNS;
  const int stop = there ? clamp((IW + PW + SKIP_W - 1) / SKIP_W, begin, COLUMNS) : COLUMNS;
  const int before = begin * PIXEL, after = stop * PIXEL;
  ONCE for (int i = 0; i < before; ++i) to[i] = zero;
  ONCE for (int i = after; i < LINE; ++i) to[i] = zero;
#if NHWC
  x += (long)(begin * SKIP_W - PW) * IC;
#if ICG == PIXEL && G == 1 && SKIP_W == 1
  to += before;
  int left = after - before;
  ONCE for (; left >= 64; left -= 64, to += 64, x += 64) *(global line *)to = *(global const line *)x ^ (uint16)(FLIP * 0x01010101u);
  ONCE for (; left > 0; --left) *to++ = *x++ ^ FLIP;
#else
  ONCE for (int q = begin; q < stop; ++q, x += SKIP_W * IC) {
    global uchar *pixel = to + q * PIXEL;
    int c = 0;
#if ICG >= 16
    ONCE for (; c + 16 <= ICG; c += 16) vstore16(vload16(0, x + c) ^ (uchar16)(FLIP), 0, pixel + c);
#endif
    for (; c < ICG; ++c) pixel[c] = x[c] ^ FLIP;
    for (; c < PIXEL; ++c) pixel[c] = 0;
  }
#endif
#else
  ONCE for (int c = 0; c < PIXEL; c += 4) {
    global const uchar *from = x + (long)c * (ID * IH * IW) - PW;
    int q = begin;
#if SKIP_W == 1
    ONCE for (; q + 16 <= stop; q += 16) {
      uint16 v = 0;
      for (int i = 0; i < 4; ++i)
        if (c + i < ICG) v |= convert_uint16(vload16(0, from + (long)i * (ID * IH * IW) + q) ^ (uchar16)(FLIP)) << (8 * i);
      union { uint16 v; uint s[16]; } u;
      u.v = v;
      for (int i = 0; i < 16; ++i) *(global uint *)(to + (q + i) * PIXEL + c) = u.s[i];
    }
#endif
    ONCE for (; q < stop; ++q) {
      uint v = 0;
      for (int i = 0; i < 4; ++i)
        if (c + i < ICG) v |= (uint)(uchar)(from[(long)i * (ID * IH * IW) + (long)q * SKIP_W] ^ FLIP) << (8 * i);
      *(global uint *)(to + q * PIXEL + c) = v;
    }
  }
#endif
}

// The band of rows oh.. of depth od.
void fill(global uchar *slot, global const uchar *x, int image, int g, int od, int oh, uchar zero) {
#if NHWC
  x += (long)image * (ID * IH * IW) * IC + g * ICG;
#else
  x += ((long)image * IC + g * ICG) * (ID * IH * IW);
#endif
  ONCE for (int kd = 0; kd < KD; ++kd) {
    const int d = od * SD + kd * DD - PD;
    ONCE for (int row = 0; row < BAND_ROWS; ++row) {
      if (!(HALVES >> (row % STEP_H) & 1)) continue;
      const int h = (oh * STEP_H + row) * SKIP_H - PH;
      const bool there = d >= 0 && d < ID && h >= 0 && h < IH;
      const long at = there ? ((long)d * IH + h) * IW : 0;
      fill_row(slot + kd * AREA + (row % STEP_H * HALF_ROWS + row / STEP_H) * LINE, x + at * (NHWC ? IC : 1), there, zero);
    }
  }
}
#endif

inline void product(global const uchar *a, global const uchar *b, global int *sums, int positions, int channels) {
#if MATRIX
  if (positions > 16) {
    if (channels > 16) tile22(a, b, OFFSETS, TAPS, sums);
    else tile21(a, b, OFFSETS, TAPS, sums);
  } else if (channels > 16) tile12(a, b, OFFSETS, TAPS, sums);
  else tile11(a, b, OFFSETS, TAPS, sums);
#else
  vectors(a, b, OFFSETS, TAPS, sums);
#endif
}

#if FINISH
// to[p]: where position p lies in a band of y, or -1.
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
#if MATRIX
  TILES_BEGIN();
#endif
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
#if MATRIX
  TILES_END();
#endif
}

// packed[g][panel][tap][byte / 4][32][byte % 4]: weights, 0 beyond the last channel, byte and tap; then sums of channels.
kernel void pack(global const char *restrict w, global char *restrict packed, long packed_at) {
  const int panel = get_global_id(0), g = get_global_id(1), j = get_global_id(2), n = 32 * panel + j;
  const bool there = n < OCG;
  packed += packed_at;
  global char *to = packed + ((long)g * PANELS + panel) * PANEL + 4 * j;
  w += (long)(g * OCG + (there ? n : 0)) * ICG * KD * KH * KW;
  int sum = 0;
  ONCE for (int tap = 0; tap < TAPS; ++tap)
    ONCE for (int i = 0; i < STEPS * UNIT; ++i) {
      const int k = tap * RUN_TAPS + i / PIXEL, c = i % PIXEL;
      char v = 0;
      if (there && c < ICG && i < RUN_TAPS * PIXEL) v = w[NHWC ? k * ICG + c : c * (KD * KH * KW) + k];
      sum += v;
      to[((long)tap * STEPS * UNIT + i) / 4 * 128 + i % 4] = v;
    }
  ((global int *)(packed + W_SUMS))[(g * PANELS + panel) * 32 + j] = sum;
}
