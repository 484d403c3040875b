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
// AREA sums of a part and group; JOBS jobs for ITEMS work items
// FLAT_AT DY_AT SUMS_AT  bytes of the slot before what is turned, dy, and the sums of a tile
#define LAST_W ((long)N * C * ALL_TAPS)
#define PLANE_ (64L * POSITIONS)
#define PAIR (128 * PLANES)

% if nhwc:
// 32 positions of 16 channels as pairs: v[pair].s[channel].
inline void pairs_of(uint16 *v, global const uchar *from) {
  for (int i = 0; i < 16; ++i) {
    const upper16 a = *(global const upper16 *)(from + (2 * i) * (64 * PLANES));
    const upper16 b = *(global const upper16 *)(from + (2 * i + 1) * (64 * PLANES));
    v[i] = convert_uint16(a) | convert_uint16(b) << 16;
  }
}
void lay_x(global uchar *to, global uchar *flat, global const REAL *x, long first, int4 f, int c0, int channels,
           int begin, int end) {
  ONCE for (int row = 0; row < BAND_ROWS; ++row) {
    const long at = source_row(first + row, f.s0, f.s1);
    fill_positions(flat + (long)row * QW * (PLANES * 64), 0, x + max(at, 0L) + (long)f.s2 * G + c0,
                   at < 0 ? QW : begin, at < 0 ? QW : end, QW, (long)SW * G, channels);
  }
  fill_positions(flat + (long)BAND_ROWS * QW * (PLANES * 64), 0, x, 64, 64, 64, 0, 32);
  ONCE for (int p = 0; p < BAND_ROWS * QW + 32; p += 32)  // a tap's last tile reads beyond
    ONCE for (int plane = 0; plane < PLANES; ++plane)
      ONCE for (int side = 0; side < (channels > 16 ? 2 : 1); ++side) {
        uint16 v[16];
        pairs_of(v, flat + (long)p * (64 * PLANES) + 64 * plane + 32 * side);
        turn(v);
        for (int c = 0; c < 16; ++c)
          *(global pairs16 *)(to + plane * PLANE_ + (16 * side + c) * (2L * POSITIONS) + 2 * p) = v[c];
      }
}
void lay_dy(global uchar *to, global uchar *flat, global const REAL *dy, long first, int n0, int channels) {
  ONCE for (int row = 0; row < ROWS; ++row) {
    const long at = target_row(first + row);
    fill_positions(flat + (long)row * QW * (PLANES * 64), 0, dy + max(at, 0L) + n0, 0, at < 0 ? 0 : YW, QW, N * GROUPS,
                   channels);
  }
  fill_positions(flat + (long)ROWS * QW * (PLANES * 64), 0, dy, 32, 32, 32, 0, 32);
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
void fill_neighbours(global uchar *to, long plane_, global const REAL *x, int begin, int end, int fw, long left,
                     const int step) {
  ONCE for (int q = 0; q < begin; q += 16)
    for (int plane = 0; plane < PLANES; ++plane) *(global upper16 *)(to + plane * plane_ + 2 * q) = 0;
  ONCE for (int q = begin; q < end; q += 16) {
    const long at = (long)q * step + fw;
    uint16 p[3];
    split(sixteen(x + at, left - at, min(16, end - q), step), p);
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
void lay_x(global uchar *to, global uchar *flat, global const REAL *x, long first, int4 f, int c0, int channels,
           int begin, int end) {
  const long plane = (long)XD * XH * XW;
  ONCE for (int c = 0; c < (channels > 16 ? 32 : 16); ++c, to += 2L * POSITIONS) {
    ONCE for (int row = 0; row < BAND_ROWS; ++row) {
      const long at = c < channels ? source_row(first + row, f.s0, f.s1) : -1;
      const long from = at < 0 ? 0 : at + (c0 + c) * plane;
      fill_neighbours(to + 2L * row * QW, PLANE_, x + from, at < 0 ? QW : begin, at < 0 ? QW : end, f.s2,
                      IMAGES * G * plane - from, SW);
    }
    zero_after(to + 2L * BAND_ROWS * QW, PLANE_, 64);
  }
}
void lay_dy(global uchar *to, global uchar *flat, global const REAL *dy, long first, int n0, int channels) {
  const long plane = (long)YD * YH * YW, pitch = 2L * FLAT, plane_ = 32 * pitch;
  ONCE for (int n = 0; n < (channels > 16 ? 32 : 16); ++n) {
    ONCE for (int row = 0; row < ROWS; ++row) {
      const long at = n < channels ? target_row(first + row) : -1, from = at < 0 ? 0 : at + (n0 + n) * plane;
      fill_neighbours(flat + n * pitch + 2L * row * QW, plane_, dy + from, 0, at < 0 ? 0 : YW, 0,
                      IMAGES * (N * GROUPS) * plane - from, 1);
    }
    zero_after(flat + n * pitch + 2L * ROWS * QW, plane_, 32);
  }
  ONCE for (int p = 0; p < 32 * (int)STEPS; p += 32)
    ONCE for (int plane = 0; plane < PLANES; ++plane)
      ONCE for (int side = 0; side < (channels > 16 ? 2 : 1); ++side) {
        uint16 v[16];
        for (int n = 0; n < 16; ++n)
          v[n] = *(global const pairs16 *)(flat + plane * plane_ + (16 * side + n) * pitch + 2 * p);
        turn(v);
        for (int i = 0; i < 16; ++i)
          *(global pairs16 *)(to + (p / 2 + i) * PAIR + 128 * plane + 64 * side) = v[i];
      }
}
% endif

// A tile's sums [32 c][32 n] to dw: of panel and block, for a tap of the kernel.
void put_tile(global const float *sums, global REAL *w, int panel, int block, int tap) {
  const int channels = min(32, C - 32 * block), rows = min(32, N - 32 * panel);
  ONCE for (int n = 0; n < rows; ++n)
    ONCE for (int c = 0; c < channels; ++c) {
% if nhwc:
      const long at = ((long)(32 * panel + n) * ALL_TAPS + tap) * C + 32 * block + c;
% else:
      const long at = ((long)(32 * panel + n) * C + 32 * block + c) * ALL_TAPS + tap;
% endif
      STORE(w, at, ${"LOAD(w, at) + " if accumulate else ""}sums[c * 32 + n]);
    }
}

inline void tile(global const uchar *x, global const uchar *dy, global float *sums, int channels, int rows, bool on) {
% for r, c in tiles:
  ${"else " if not loop.first else ""}${"if (%s && %s)" % ("channels > 16" if r == 2 else "channels <= 16", "rows > 16" if c == 2 else "rows <= 16") if len(tiles) > 1 else ""} {
    if (on) more_${r}${c}(x, dy, TAP_AT, STEPS, sums);
    else begin_${r}${c}(x, dy, TAP_AT, STEPS, sums);
  }
% endfor
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void weights(global const REAL *restrict x, global const REAL *restrict dy, global REAL *restrict w,
             global uchar *restrict workspace) {
  const int item = get_global_id(0);
  global uchar *slot = workspace + SLOTS + item * SLOT, *gradient = slot + DY_AT;
  const int last = (int)((item + 1) * JOBS / ITEMS);
  TILES_BEGIN();
  ONCE for (int job = (int)(item * JOBS / ITEMS); job < last; ++job) {
    const int share = job % SHARES, part = job / SHARES % SPLITS, g = job / (SHARES * SPLITS);
    global float *area = (global float *)workspace + ((long)part * GROUPS + g) * AREA;
    const int from = (int)((long)part * BANDS / SPLITS), to = (int)((long)(part + 1) * BANDS / SPLITS);
    const int panels = min(PANELS, share * PER + PER);
    ONCE for (int band = from; band < to; ++band) {
      ONCE for (int block = 0; block < BLOCKS; ++block)
        ONCE for (int p = 0; p < PARTS; ++p) {
          const int4 f = PART_AT[p];
          const int begin = clamp((-f.s2 + SW - 1) / SW, 0, QW), end = clamp((XW - f.s2 + SW - 1) / SW, begin, QW);
          lay_x(slot + ((long)block * PARTS + p) * (PLANES * PLANE_), slot + FLAT_AT, x, (long)band * ROWS, f,
                g * C + 32 * block, min(32, C - 32 * block), begin, end);
        }
      ONCE for (int panel = share * PER; panel < panels; ++panel) {
        lay_dy(gradient, slot + FLAT_AT, dy, (long)band * ROWS, g * N + 32 * panel, min(32, N - 32 * panel));
        ONCE for (int block = 0; block < BLOCKS; ++block)
          ONCE for (int tap = 0; tap < TAPS; ++tap) {
            const int2 at = OFFSETS[tap];
            global float *sums = ${"(global float *)(slot + SUMS_AT)" if once else "area + (((long)panel * BLOCKS + block) * TAPS + tap) * 1024"};
            tile(slot + ((long)block * PARTS + at.s0) * (PLANES * PLANE_) + 2L * at.s1, gradient, sums,
                 min(32, C - 32 * block), min(32, N - 32 * panel), band > from);
            if (SPLITS == 1 && band == to - 1) put_tile(sums, w + g * LAST_W, panel, block, TAP_AT[tap]);
          }
      }
    }
  }
  TILES_END();
}

% if splits > 1:
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void reduce(global uchar *restrict workspace, global REAL *restrict w) {
  const int tile = get_global_id(0), g = get_global_id(1);
  global float *sums = (global float *)workspace + (long)g * AREA + (long)tile * 1024;
  ONCE for (int i = 0; i < 1024; i += 16) {
    float16 v = LOADW(sums + i);
    ONCE for (int part = 1; part < SPLITS; ++part) v += LOADW(sums + (long)part * GROUPS * AREA + i);
    STOREW(sums + i, v);
  }
  put_tile(sums, w + g * LAST_W, tile / (TAPS * BLOCKS), tile / TAPS % BLOCKS, TAP_AT[tile % TAPS]);
}
% endif
