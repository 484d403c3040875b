// A band of x between padding, bytes of a pixel after those of the last (packed_kernel.py), and weights as tiles read them.
//
// the problem's letters; NHWC 1: NHWC; IN_PLACE 1: x is read where it is, and no band is made
// PIXEL LINE AREA HALF_ROWS STEP_H SKIP_H SKIP_W COLUMNS BAND_ROWS HALVES  the band's sizes in bytes, rows and columns
// FLIP          bytes are xored with this when they are copied: 0x80 makes them unsigned
// TAPS RUN_TAPS STEPS UNIT PANEL  taps, those of a run, steps of UNIT bytes in each, bytes of 32 channels' weights
// PANELS W_SUMS panels of 32 channels of a group; bytes of all weights, behind which are their sums
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

// Copies the band of rows oh.. of depth od.
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
