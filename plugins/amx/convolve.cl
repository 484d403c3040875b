// y[n, pixel] = epilogue(sum over (c, tap) of w[n, c, tap] x[c, pixel * step + origin + tap * spread]) by matrix registers
//
// A work item takes bands of rows. It splits the source of a band into its slot (band.cl) and computes tiles of 32
// positions by 32 target channels there, one after the other, for some panels of 32 channels. What stands at a position
// that is not a pixel of the target is dropped.
//
// N target channels per group in PANELS panels of 32, PER of them a job
// PHASES phases: PLACES of each, elements before its FIRST one; its TAPS, those BEFORE it, bytes before its PACKED weights
// SIDES phases whose pixels are neighbours leave together; SIDE_ sums from one to the next
// ROWS rows of positions of a band, BANDS bands; JOBS jobs for ITEMS work items
// SUMS_AT  bytes of the slot before sums, which are followed by where rows read, where those of each phase are written, and
//          where each step begins for position 0
// OUT_STEP  OW_ in the text, where vectors are along rows (NCHW): there sums of positions are turned first
// SCALED    1: bands and weights were multiplied by powers of two, of which sums are freed as they leave
// PLACES_FIRST  1: panels are the inner loop, so that what neighbours in memory is written in turn
#include <convdispatch/first_lanes.cl>
inline void put_some(OUT_PARAMS, long at, V v, int n, ACC b) {
  if (n >= 16) put_vector(OUT_ARGS, at, v, b);
  else put_first(OUT_ARGS, at, v, n, b);
}

#if !NHWC && !ACROSS
// Transposes [32 positions][32 n] to [n][positions], only half of it if there are 16 channels or fewer.
void transpose_tile(global const float *sums, global float *turned, int channels) {
  ONCE for (int n = 0; n < channels; n += 16)
    ONCE for (int i = 0; i < 32; i += 16) {
      uint16 v[16];
      for (int j = 0; j < 16; ++j) v[j] = *(global const uint16 *)(sums + (i + j) * 32 + n);
      transpose(v);
      for (int j = 0; j < 16; ++j) *(global uint16 *)(turned + (n + j) * 32 + i) = v[j];
    }
}
#endif

#if SCALED
#define SUM(p) (LOADW(p) * down)
#define ONE_SUM(p) (*(p) * down)
#define DOWN_IN float down,
#define DOWN POWER(-k),
typedef int16 __attribute__((aligned(4))) some_ints;
// The exponent that the largest number of a band gets by scaling: products with scaled weights are then in the middle of
// float32's range, and numbers smaller by 2^100 are still normal.
int wanted_exponent(SIZES_IN global const int *notes) {
  int largest = NONE;
  ONCE for (int i = 0; i < GROUPS * PANELS * BLOCKS; ++i) largest = max(largest, notes[NOTE_ * i]);
  return largest == NONE ? 0 : clamp(60 - largest, -60, 100);
}
// Adds the sums of a block whose columns were multiplied by powers of two.
void add_block(global float *sums, global const float *part, global const int *exponents) {
#if ACROSS
  ONCE for (int n = 0; n < 32; ++n)
    for (int i = 0; i < 32; i += 16) {
      const int at = 32 * n + i;
      STOREW(sums + at, LOADW(sums + at) + LOADW(part + at) * POWER(-exponents[n]));
    }
#else
  const int16 low = *(global const some_ints *)exponents, high = *(global const some_ints *)(exponents + 16);
  const V l = as_float16((127 - low) << 23), h = as_float16((127 - high) << 23);
  ONCE for (int i = 0; i < 1024; i += 32) {
    STOREW(sums + i, LOADW(sums + i) + LOADW(part + i) * l);
    STOREW(sums + i + 16, LOADW(sums + i + 16) + LOADW(part + i + 16) * h);
  }
#endif
}
#else
#define SUM LOADW
#define ONE_SUM(p) (*(p))
#define DOWN_IN
#define DOWN
#endif
void put_tile(SIZES_IN DOWN_IN global float *sums, OUT_PARAMS, global const long *rows_at, int rows, int places, int q,
              int n0, int g) {
  const int channels = min(32, N - n0);
#if NHWC && BIAS
  const V low = first_of(bias + g * N + n0, channels), high = first_of(bias + g * N + n0 + 16, channels - 16);
#elif NHWC
  const V low = 0, high = 0;
#elif !ACROSS
  ONCE for (int side = 0; side < SIDES; ++side)
    transpose_tile(sums + side * SIDE_, sums + side * SIDE_ + 1024, channels);
  sums += 1024;
#endif
  const int width = QW;
  ONCE for (int i = 0, row = 0; i < TALL && row < rows; i += width - q, q = 0, ++row) {
    const int run = min(TALL - i, places - q);
    const long at = rows_at[row];
    if (run > 0 && at >= 0) {
#if NHWC
      const long pitch = (long)OW_ * (N * GROUPS);
      long to = at + q * pitch + g * N + n0;
      global const float *s = sums + i * 32;
      if (channels == 32) {
        ONCE for (int j = 0; j < run; ++j, to += pitch, s += 32) {
          put_vector(OUT_ARGS, to, SUM(s) + low, 0);
          put_vector(OUT_ARGS, to + 16, SUM(s + 16) + high, 0);
        }
      } else {
        ONCE for (int j = 0; j < run; ++j, to += pitch, s += 32) {
          put_some(OUT_ARGS, to, SUM(s) + low, channels, 0);
          if (channels > 16) put_some(OUT_ARGS, to + 16, SUM(s + 16) + high, channels - 16, 0);
        }
      }
#else
      const long plane = (long)TD * TH * TW;
      long to = at + (g * N + n0) * plane + (long)q * OUT_STEP;
      global const float *s = sums + i;
      ONCE for (int n = 0; n < channels; ++n, to += plane, s += 32) {
#if BIAS
        const ACC b = LOAD(bias, g * N + n0 + n);
#else
        const ACC b = 0;
#endif
#if OUT_STEP == 1
        if (run > 16) put_vector(OUT_ARGS, to, SUM(s), b);
        const int rest = run > 16 ? 16 : 0;
        put_some(OUT_ARGS, to + rest, SUM(s + rest), run - rest, b);
#elif SIDES == 2
        ONCE for (int j = 0; j < run; j += 16)
          put_pairs(OUT_ARGS, to + 2 * j, SUM(s + j), SUM(s + SIDE_ + j), min(2 * min(16, run - j), TW - 2 * (q + j)), b);
#else
        ONCE for (int j = 0; j < run; ++j) put_one(OUT_ARGS, to + j * OUT_STEP, ONE_SUM(s + j), b);
#endif
      }
#endif
    }
  }
}

#if ACROSS
#define PRODUCT_(name, to, ...) name(weights, at, steps_at, steps, to, 4L * POSITIONS, ##__VA_ARGS__)
#elif VECTORS
#define PRODUCT_(name, to, ...) name(at, weights, steps_at, steps, to, ROW, ##__VA_ARGS__)
#else
#define PRODUCT_(name, to) name(at, weights, steps_at, steps, to)
#endif
#if ROUNDED
// A tile whose positions from q on are pixels and neighbours in the target, through as many rows, leaves registers as
// bfloat16; false where this is none. rows_at: of position 0, and of the rows behind it.
bool put_rounded(SIZES_IN global const uchar *at, global const uchar *weights, global const int *steps_at, long steps,
                 OUT_PARAMS, global const long *rows_at, int rows, int places, int q, int n0, int g) {
  const int channels = min(32, N - n0), end = (q + TALL - 1) / QW;
  if (channels % 16 || rows_at[0] < 0 || (end && places < QW) || end >= rows || q + TALL - end * QW > places) return false;
#if NHWC
  const long pitch = (long)N * GROUPS, unit = pitch, to = rows_at[0] + q * pitch + g * N + n0;
#else
  const long pitch = (long)TD * TH * TW, unit = 1, to = rows_at[0] + q + (g * N + n0) * pitch;
#endif
  if (rows_at[end] - rows_at[0] != unit * end * QW) return false;
  if (channels == 32) PRODUCT_(rounded_tile, (global uchar *)(out + to), 2 * pitch);
  else PRODUCT_(narrow_rounded_tile, (global uchar *)(out + to), 2 * pitch);
  return true;
}
#endif
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const uchar *restrict w, long w_at, global uchar *workspace,
          const Sizes given, OUT_PARAMS) {
  const Sizes *sizes = &given;
  const int item = get_global_id(0);
  global uchar *slot = workspace + item * SLOT;
  global float *sums = (global float *)(slot + SUMS_AT);
  global long *sources = (global long *)(sums + SIDES * SIDE_ + 1024 * SCALED), *targets = sources + BAND_ROWS;
  global int *offsets = (global int *)(targets + PHASES * ROWS);
  const int last = (int)((item + 1) * JOBS / ITEMS);
  int band_there = -1;
  w += w_at;
  list_steps(SIZES offsets);
#if SCALED
  global const int *notes = (global const int *)(w + NOTES_AT);
  const int wanted = wanted_exponent(SIZES notes);
  int k = wanted;
  Scale whole, *const scale = &whole;
#endif
  TILES_BEGIN();
  ONCE for (int job = (int)(item * JOBS / ITEMS); job < last; ++job) {
    const int part = job % PARTS_OF_N, band = job / PARTS_OF_N, g = band / BANDS;
    const int first = band % BANDS * ROWS, rows = min(ROWS, ALL_ROWS - first), tiles = (rows * QW + TALL - 1) / TALL;
    const int begin = part * PER, panels = min(PANELS - begin, PER);
    if (band != band_there) {
#if SCALED
      // As the band before it, and again if it is much larger or smaller than that.
      ONCE for (;;) {
        scale->by = POWER(k), scale->most = 0;
        fill(SIZES SCALE slot, x, sources, first, g);
        const int e = exponent_of_most(scale), before = k;
        if (e != NONE && (e + k < wanted - 40 || e + k > wanted + 20)) k = clamp(wanted - e, -126, 126);
        if (k == before) break;
      }
#elif !IN_PLACE
      fill(SIZES slot, x, sources, first, g);
#endif
      ONCE for (int phase = 0; phase < PHASES; ++phase) list_targets(SIZES targets + phase * ROWS, first, rows, phase);
      band_there = band;
    }
    ONCE for (int outer = 0; outer < (PLACES_FIRST ? tiles : panels); ++outer)
      ONCE for (int inner = 0; inner < (PLACES_FIRST ? panels : tiles); ++inner) {
        const int p = TALL * (PLACES_FIRST ? outer : inner), panel = begin + (PLACES_FIRST ? inner : outer);
        const int row = p < QW ? 0 : p / QW;
#if IN_PLACE
        // The last tile ends where the rows do.
        const int back = max(p + TALL - rows * QW, 0);
        global const uchar *at = (global const uchar *)(x + ((long)first * QW + p - back) * G + g * C);
#else
        const int back = 0;
        global const uchar *at = slot + (long)p * UNIT;
#endif
        ONCE for (int phase = 0; phase < PHASES; phase += SIDES) {
          global const long *rows_at = targets + phase * ROWS + row;
          const int places = PLACES[3 * phase + 2], q = p - row * QW;
          bool gone = false;
          ONCE for (int side = 0; side < SIDES; ++side) {
            const long steps = BLOCKS * (long)TAPS[phase + side];
            global const uchar *weights = w + PACKED[phase + side] + ((long)g * PANELS + panel) * (steps * STEP_W);
            global const int *steps_at = offsets + BLOCKS * BEFORE[phase + side];
            global float *to = sums + side * SIDE_;
#if ROUNDED
            gone = steps && put_rounded(SIZES at, weights, steps_at, steps, OUT_ARGS, rows_at, rows - row, places, q - back,
                                        32 * panel, g);
            if (gone) continue;
#endif
#if SCALED
            global const int *note = notes + ((long)g * PANELS + panel) * (BLOCKS * NOTE_);
            bool apart = false;
            ONCE for (int block = 0; block < BLOCKS; ++block) apart |= note[block * NOTE_ + 1];
            if (steps && apart) {
              global float *part = sums + SIDES * SIDE_;
              ONCE for (int i = 0; i < 1024; i += 16) STOREW(to + i, (V)(0));
              const long taps = TAPS[phase + side];
              ONCE for (int block = 0; block < BLOCKS; ++block, weights += taps * STEP_W, steps_at += taps) {
                const long steps = taps;
                PRODUCT_(tile, part);
                add_block(to, part, note + block * NOTE_ + 2);
              }
            } else
#endif
            if (!steps)
              ONCE for (int i = 0; i < 1024; i += 16) STOREW(to + i, (V)(0));
            else if (N - 32 * panel <= 16) PRODUCT_(narrow_tile, to);
            else PRODUCT_(tile, to);
          }
          if (!gone) put_tile(SIZES DOWN sums + 32 * back, OUT_ARGS, rows_at, rows - row, places, q, 32 * panel, g);
        }
      }
  }
  TILES_END();
}
