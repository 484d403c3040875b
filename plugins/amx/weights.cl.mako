## dw[n, c, tap] = sum over places of dy[n, place] x[c, place * step + origin + tap * spread] by matrix registers
//
// A work item takes bands of rows. It lays those of x and dy out as planes whose neighbours are positions, dy with zeros
// at positions that are no places, and adds tiles of 32 source channels by 32 target channels, one for each tap: a tap is
// an offset in x.
//
// x  slot[block of 32 channels][part][plane][channel][position]
// dy slot[block of 32 channels][pair of positions][plane][channel][2]
//
// C source channels in BLOCKS, N target channels in PANELS, PER of these a job; POSITIONS of a channel of x
// ROWS rows of positions of a band, BANDS bands dealt to SPLITS parts of the sum; STEPS of 32 positions
// AREA sums of a part and group; RUN taps that neighbour in dw; JOBS jobs for ITEMS work items
// NEAR steps that all taps go over before the next ones
// SCALED  1: bands were multiplied by powers of two, of which sums are freed as they leave; SCALES_AT bytes before what is
//         noted of each part, group and panel: the exponent of its sums, or UNSET while they are 0, and that of dy
// FLAT_AT DY_AT SUMS_AT  bytes of the slot before what is turned, dy, and the sums of all taps
#define LAST_W ((long)N * C * TAPS)
#define PLANE_ (64L * POSITIONS)
#define PAIR (128 * PLANES)
#if SCALED
#define UNSET 100000
// The exponent that the largest of a band should have after it is multiplied.
#define WANTED_ 35
// Whether a band was multiplied well; else what it should be multiplied by.
inline bool is_well_scaled(const Scale *scale, int *k, bool *zero) {
  const int e = exponent_of_most(scale), before = *k;
  *zero = e == NONE;
  if (!*zero && (e + *k < 0 || e + *k > WANTED_ + 10)) *k = clamp(WANTED_ - e, -126, 126);
  return *k == before;
}
inline float16 multiplied(float16 v, int k) {
  k = clamp(k, -252, 252);
  return v * POWER(k / 2) * POWER(k - k / 2);
}
// Sums of one exponent and a band's of another, as sums of the smaller one.
void join(global float *sums, global const float *part, int one, int other) {
  const int k = min(one, other);
  ONCE for (int i = 0; i < TAPS * 1024; i += 16)
    STOREW(sums + i, multiplied(LOADW(sums + i), k - one) + multiplied(LOADW(part + i), k - other));
}
#endif

% if paired:
// n positions from ``from`` on, ``pitch`` elements apart, to[block: AREA bytes][pair][32 channels][2]; blocks in turn, so
// that what neighbours in memory is read in turn.
void lay_pairs(global uchar *to, const long area, global const REAL *from, long pitch, int n, int channels) {
  ONCE for (int p = 0; p < 32 * (int)STEPS; p += 2, from += 2 * pitch, to += 128) {
    global uchar *pair = to;
    int c = 0;
    if (p + 1 < n)
      ONCE for (; c + 32 <= channels; c += 32, pair += area)
        for (int side = 0; side < 32; side += 16)
          *(global pairs16 *)(pair + 4 * side) =
              as_uint16(LOADV(from + c + side)) >> 16 | as_uint16(LOADV(from + pitch + c + side));
    ONCE for (; c < channels; c += 32, pair += area)
      ONCE for (int side = 0; side < min(channels - c, 32); side += 16) {
        const int some = channels - c - side;
        const uint16 a = as_uint16(first_of(from + c + side, p < n ? some : 0));
        const uint16 b = as_uint16(first_of(from + pitch + c + side, p + 1 < n ? some : 0));
        *(global pairs16 *)(pair + 4 * side) = a >> 16 | b;
      }
  }
}
% elif nhwc:
// 32 positions of 16 channels as pairs: v[pair].s[channel].
inline void pairs_of(uint16 *v, global const uchar *from) {
  for (int i = 0; i < 16; ++i) {
    const upper16 a = *(global const upper16 *)(from + (2 * i) * (64 * PLANES));
    const upper16 b = *(global const upper16 *)(from + (2 * i + 1) * (64 * PLANES));
    v[i] = convert_uint16(a) | convert_uint16(b) << 16;
  }
}
void lay_x(SCALE_IN global uchar *to, global uchar *flat, global const REAL *x, long first, int4 f, int c0, int channels,
           int begin, int end) {
  ONCE for (int row = 0; row < BAND_ROWS; ++row) {
    const long at = source_at(SIZES place_of(SIZES first + row), f.s0, f.s1);
    fill_positions(SCALE flat + (long)row * QW * (PLANES * 64), 0, x + max(at, 0L) + (long)f.s2 * G + c0,
                   at < 0 ? QW : begin, at < 0 ? QW : end, QW, (long)SW * G, channels);
  }
  fill_positions(SCALE flat + (long)BAND_ROWS * QW * (PLANES * 64), 0, x, 64, 64, 64, 0, 32);
  ONCE for (int p = 0; p < BAND_ROWS * QW + 32; p += 32)  // a tap's last tile reads beyond
    ONCE for (int plane = 0; plane < PLANES; ++plane)
      ONCE for (int side = 0; side < (channels > 16 ? 2 : 1); ++side) {
        uint16 v[16];
        pairs_of(v, flat + (long)p * (64 * PLANES) + 64 * plane + 32 * side);
        transpose(v);
        for (int c = 0; c < 16; ++c)
          *(global pairs16 *)(to + plane * PLANE_ + (16 * side + c) * (2L * POSITIONS) + 2 * p) = v[c];
      }
}
void lay_dy(SCALE_IN global uchar *to, global uchar *flat, global const REAL *dy, long first, int n0, int channels) {
  ONCE for (int row = 0; row < ROWS; ++row) {
    const long at = target_at(SIZES place_of(SIZES first + row), YD, YH);
    fill_positions(SCALE flat + (long)row * QW * (PLANES * 64), 0, dy + max(at, 0L) + n0, 0, at < 0 ? 0 : YW, QW, N * GROUPS,
                   channels);
  }
  fill_positions(SCALE flat + (long)ROWS * QW * (PLANES * 64), 0, dy, 32, 32, 32, 0, 32);
  ONCE for (int p = 0; p < 32 * (int)STEPS; p += 32)
    ONCE for (int plane = 0; plane < PLANES; ++plane)
      ONCE for (int side = 0; side < (channels > 16 ? 2 : 1); ++side) {
        uint16 v[16];
        pairs_of(v, flat + (long)p * (64 * PLANES) + 64 * plane + 32 * side);
        for (int i = 0; i < 16; ++i)
          *(global pairs16 *)(to + (p / 2 + i) * PAIR + 128 * plane + 64 * side) = v[i];
      }
}
% else:
// A row of one channel; vectors run over its end, where the next row is written later.
void fill_neighbours(SCALE_IN global uchar *to, long plane_, global const REAL *x, int begin, int end, int fw, long left,
                     const int step) {
  ONCE for (int q = 0; q < begin; q += 16)
    for (int plane = 0; plane < PLANES; ++plane) *(global upper16 *)(to + plane * plane_ + 2 * q) = 0;
  ONCE for (int q = begin; q < end; q += 16) {
    const long at = (long)q * step + fw;
    uint16 p[3];
    split(SCALE sixteen(x + at, left - at, min(16, end - q), step), p);
    for (int plane = 0; plane < PLANES; ++plane)
      *(global upper16 *)(to + plane * plane_ + 2 * q) = convert_ushort16(p[plane] >> 16);
  }
  ONCE for (int q = end; q < QW; q += 16)
    for (int plane = 0; plane < PLANES; ++plane) *(global upper16 *)(to + plane * plane_ + 2 * q) = 0;
}
inline void zero_after(global uchar *to, long plane_, int n) {
  ONCE for (int plane = 0; plane < PLANES; ++plane)
    ONCE for (int i = 0; i < n; i += 16) *(global upper16 *)(to + plane * plane_ + 2 * i) = 0;
}
void lay_x(SCALE_IN global uchar *to, global uchar *flat, global const REAL *x, long first, int4 f, int c0, int channels,
           int begin, int end) {
  const long plane = (long)XD * XH * XW;
  ONCE for (int c = 0; c < (channels > 16 ? 32 : 16); ++c, to += 2L * POSITIONS) {
    ONCE for (int row = 0; row < BAND_ROWS; ++row) {
      const long at = c < channels ? source_at(SIZES place_of(SIZES first + row), f.s0, f.s1) : -1;
      const long from = at < 0 ? 0 : at + (c0 + c) * plane;
      fill_neighbours(SCALE to + 2L * row * QW, PLANE_, x + from, at < 0 ? QW : begin, at < 0 ? QW : end, f.s2,
                      IMAGES * G * plane - from, SW);
    }
    zero_after(to + 2L * BAND_ROWS * QW, PLANE_, 64);
  }
}
void lay_dy(SCALE_IN global uchar *to, global uchar *flat, global const REAL *dy, long first, int n0, int channels) {
  const long plane = (long)YD * YH * YW, pitch = 2L * FLAT, plane_ = 32 * pitch;
  ONCE for (int row = 0, p = 0; row <= ROWS; ++row) {
    const long at = row < ROWS ? target_at(SIZES place_of(SIZES first + row), YD, YH) : -1;
    ONCE for (int n = 0; n < (channels > 16 ? 32 : 16); ++n) {
      global uchar *line = flat + n * pitch + 2L * row * QW;
      const long from = at < 0 || n >= channels ? -1 : at + (n0 + n) * plane;
      if (row == ROWS) zero_after(line, plane_, 32);
      else fill_neighbours(SCALE line, plane_, dy + max(from, 0L), 0, from < 0 ? 0 : YW, 0, IMAGES * (N * GROUPS) * plane - from, 1);
    }
    // What whole rows have filled is turned while it is near.
    ONCE for (; row == ROWS ? p < 32 * (int)STEPS : p + 32 <= (row + 1) * QW; p += 32)
      ONCE for (int plane = 0; plane < PLANES; ++plane)
        ONCE for (int side = 0; side < (channels > 16 ? 2 : 1); ++side) {
          uint16 v[16];
          for (int n = 0; n < 16; ++n)
            v[n] = *(global const pairs16 *)(flat + plane * plane_ + (16 * side + n) * pitch + 2 * p);
          transpose(v);
          for (int i = 0; i < 16; ++i)
            *(global pairs16 *)(to + (p / 2 + i) * PAIR + 128 * plane + 64 * side) = v[i];
        }
  }
}
% endif

// Sums [tap][32 c][32 n], of as many parts as there are, to dw: sixteen target channels from n on, of panel and block.
// What neighbours in dw, taps of channels or (channels last) channels of a tap, is turned out of vectors over n.
// scales: what is noted of the first part.
void put_sums(global const float *sums, global REAL *w, int panel, int block, int n, const int parts,
              global const int *scales) {
#if SCALED
  int least = UNSET;
  for (int part = 0; part < parts; ++part) least = min(least, scales[2 * part * GROUPS * PANELS]);
#endif
  const int run = min(32, C - 32 * block) * RUN, rows = min(16, N - 32 * panel - n);
  ONCE for (int tap = 0; tap < TAPS; tap += RUN)
    ONCE for (int j = 0; j < run; j += 16) {
      uint16 v[16];
      for (int i = 0; i < 16; ++i) {
        global const float *s = sums + (tap + (j + i) % RUN) * 1024 + (j + i) / RUN * 32 + n;
#if SCALED
        float16 sum = 0;
        for (int part = 0; part < parts; ++part) {
          const int k = scales[2 * part * GROUPS * PANELS];
          sum += multiplied(LOADW(s + (long)part * GROUPS * AREA), k == UNSET ? 0 : least - k);
        }
        if (least != UNSET) sum = multiplied(sum, -least);
#else
        float16 sum = LOADW(s);
        for (int part = 1; part < parts; ++part) sum += LOADW(s + (long)part * GROUPS * AREA);
#endif
        v[i] = as_uint16(sum);
      }
      transpose(v);
      global REAL *to = w + ((long)(32 * panel + n) * TAPS + tap) * C + (long)(32 * block) * RUN + j;
      ONCE for (int i = 0; i < rows; ++i, to += (long)C * TAPS) {
        union { float16 v; float s[16]; } u;
        u.v = as_float16(v[i]);
        if (run - j >= 16) STOREV(to, ${"LOADV(to) + " if accumulate else ""}u.v);
        else ONCE for (int k = 0; k < run - j; ++k) STORE(to, k, ${"LOAD(to, k) + " if accumulate else ""}u.s[k]);
      }
    }
}

inline void tile(global const uchar *x, global const uchar *dy, long steps, global float *sums, int channels, int rows, bool on) {
% for r, c in tiles:
  ${"else " if not loop.first else ""}${"if (%s && %s)" % ("channels > 16" if r == 2 else "channels <= 16", "rows > 16" if c == 2 else "rows <= 16") if len(tiles) > 1 else ""} {
    if (on) more_${r}${c}(x, dy, steps, sums);
    else begin_${r}${c}(x, dy, steps, sums);
  }
% endfor
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void weights(global const REAL *restrict x, global const REAL *restrict dy, global REAL *restrict w,
             global uchar *restrict workspace) {
  const int item = get_global_id(0);
  global uchar *slot = workspace + SLOTS + item * SLOT, *gradient = slot + DY_AT;
  const int last = (int)((item + 1) * JOBS / ITEMS);
#if SCALED
  Scale whole, *const scale = &whole;
  bool no_x, no_dy;
#endif
  TILES_BEGIN();
  ONCE for (int job = (int)(item * JOBS / ITEMS); job < last; ++job) {
    const int share = job % SHARES, part = job / SHARES % SPLITS, g = job / (SHARES * SPLITS);
    global float *area = (global float *)workspace + ((long)part * GROUPS + g) * AREA;
    const int from = (int)((long)part * BANDS / SPLITS), to = (int)((long)(part + 1) * BANDS / SPLITS);
    const int panels = min(PANELS, share * PER + PER);
    global int *scales = (global int *)(workspace + SCALES_AT) + 2 * ((long)part * GROUPS + g) * PANELS;
#if SCALED
    int k = WANTED_;
#endif
    ONCE for (int band = from; band < to; ++band) {
% if paired:
      lay_pairs(slot, PLANE_, x + (long)band * (ROWS * QW) * G + g * C, G, min(ROWS, ALL_ROWS - band * ROWS) * QW, C);
% else:
#if SCALED
      do {
        scale->by = POWER(k), scale->most = 0;
#endif
      ONCE for (int block = 0; block < BLOCKS; ++block)
        ONCE for (int p = 0; p < PARTS; ++p) {
          const int4 f = PART_AT[p];
          const int begin = clamp((-f.s2 + SW - 1) / SW, 0, QW), end = clamp((XW - f.s2 + SW - 1) / SW, begin, QW);
          lay_x(SCALE slot + ((long)block * PARTS + p) * (PLANES * PLANE_), slot + FLAT_AT, x, (long)band * ROWS, f,
                g * C + 32 * block, min(32, C - 32 * block), begin, end);
        }
#if SCALED
      } while (!is_well_scaled(scale, &k, &no_x));
#endif
% endif
      ONCE for (int panel = share * PER; panel < panels; ++panel) {
% if paired:
        lay_pairs(gradient, 0, dy + (long)band * (ROWS * QW) * (N * GROUPS) + g * N + 32 * panel, N * GROUPS,
                  min(ROWS, ALL_ROWS - band * ROWS) * QW, min(32, N - 32 * panel));
% else:
#if SCALED
        global int *noted = scales + 2 * panel;
        if (band == from) noted[0] = UNSET, noted[1] = WANTED_;
        int own = noted[1];
        do {
          scale->by = POWER(own), scale->most = 0;
#endif
        lay_dy(SCALE gradient, slot + FLAT_AT, dy, (long)band * ROWS, g * N + 32 * panel, min(32, N - 32 * panel));
#if SCALED
        } while (!is_well_scaled(scale, &own, &no_dy));
        noted[1] = own;
        const int before = noted[0], now = no_x || no_dy ? before : k + own;
        const bool apart = before != UNSET && now != before;
#endif
% endif
        ONCE for (int block = 0; block < BLOCKS; ++block) {
          global float *sums = ${"(global float *)(slot + SUMS_AT)" if single_pass else "area + ((long)panel * BLOCKS + block) * TAPS * 1024"};
#if SCALED
          global float *into = apart ? (global float *)(slot + PART_SUMS_AT) : sums;
          const bool on = band > from && !apart;
#else
          global float *into = sums;
          const bool on = band > from;
#endif
          ONCE for (long step = 0; step < STEPS; step += NEAR)
            ONCE for (int tap = 0; tap < TAPS; ++tap) {
              const int2 at = OFFSETS[tap];
              tile(slot + ((long)block * PARTS + at.s0) * (PLANES * PLANE_) + 2L * at.s1 + ${2048 if paired else 64} * step,
                   gradient + step * (16 * PAIR), min((long)NEAR, STEPS - step), into + tap * 1024,
                   min(32, C - 32 * block), min(32, N - 32 * panel), on || step);
            }
#if SCALED
          if (apart) join(sums, into, before, now);
          noted[0] = apart ? min(before, now) : now;
#endif
          if (SPLITS == 1 && band == to - 1)
            ONCE for (int n = 0; n < min(32, N - 32 * panel); n += 16)
              put_sums(sums, w + g * LAST_W, panel, block, n, 1, scales + 2 * panel);
        }
      }
    }
  }
  TILES_END();
}

% if splits > 1:
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void reduce(global uchar *restrict workspace, global REAL *restrict w) {
  const int tile = get_global_id(0) / 2, n = get_global_id(0) % 2 * 16, g = get_global_id(1), panel = tile / BLOCKS;
  global float *sums = (global float *)workspace + (long)g * AREA + (long)tile * (TAPS * 1024);
  global const int *scales = (global const int *)(workspace + SCALES_AT) + 2 * ((long)g * PANELS + panel);
  if (32 * panel + n < N) put_sums(sums, w + g * LAST_W, panel, tile % BLOCKS, n, SPLITS, scales);
}
% endif
