## lanes: LANES; block: vectors of sums that are computed at a time; rest: weights of a row's last, shorter run
## x[image, c, .., u - pad] = epilogue(sum over o, rows of taps and t of w[o, c, .., t SW + u % SW] y[image, o, .., u / SW - t])
//
// NCHW, the data gradient of few channels per group: a row of y is spread first, each element SW times, so that neighbouring
// pixels of x, whatever their phase, are neighbours. A tap t of a row is then a product of two rows of vectors: the spread
// row, and SW weights over and over. No pixel is multiplied by a padding zero: pixels that taps do not reach are left
// out of their runs, and where a kernel's last SW weights are fewer, lanes keep their sums.
//
// A work item takes bands of a plane's rows. Its slot: LEAD elements that are read and dropped; OCG planes of y with rows of
// PITCH elements; at TABLE the weights,
// TURN elements, SW over and over, for each of TAPS_W runs of a row of taps; at MASK which elements of the last run are
// weights; at SUMS a row of x, from its padding on.
//
// LANES, V, KEPT, KEPT_1  elements of a vector, its type; integers of its size, one of them
// X? Y? K? S? D? P?       sizes of x and y, kernel, stride, dilation, near padding; IC, OC, ICG, OCG channels
#include <convdispatch/output_lanes.cl>
#define BLOCK (${block} * LANES)
#define TURN (SW + BLOCK)
#define FULL (KW / SW)
#define TAPS_W ((KW + SW - 1) / SW)
#define FIRST ((TAPS_W - 1) * SW)
#define SPREAD (YW * SW)
typedef KEPT __attribute__((aligned(sizeof(KEPT_1)))) KEPT_U;
#define LOADM(p) (*(global const KEPT_U *)(p))

inline void spread(global ACC *slot, global const REAL *restrict y, global const REAL *restrict w) {
  ONCE for (int row = 0; row < OCG * YD * YH; ++row) {
    global ACC *to = slot + row * PITCH;
    global const REAL *from = y + (long)row * YW;
    ONCE for (int q = 0; q < YW; ++q) {
      const ACC v = LOAD(from, q);
      for (int f = 0; f < SW; ++f) to[q * SW + f] = v;
    }
  }
  global ACC *to = slot + TABLE;
  ONCE for (int o = 0; o < OCG; ++o)
    ONCE for (int row = 0; row < KD * KH; ++row)
      ONCE for (int t = 0; t < TAPS_W; ++t, to += TURN)
        ONCE for (int j = 0; j < TURN; ++j) {
          const int tap = t * SW + j % SW;
          to[j] = tap < KW ? LOAD(w, (long)o * ICG * KD * KH * KW + row * KW + tap) : (ACC)0;
        }
}

// A vector of sums near a row's end, where some lanes of some runs read outside the row: these keep their sums.
inline void add_edge(global ACC *restrict sums, global const ACC *restrict row, global const ACC *restrict weights,
                     global const KEPT_1 *restrict mask, int u) {
  const int f = u % SW;
  V a = LOADW(sums + u);
  ONCE for (int t = max(0, (u - SPREAD) / SW); t < TAPS_W && t * SW < u + LANES; ++t) {
    const KEPT at = (KEPT_1)(u - t * SW) + (KEPT)(${", ".join(map(str, range(lanes)))});
    KEPT inside = at >= (KEPT)0 && at < (KEPT)SPREAD;
% if rest:
    if (t == FULL) inside = inside && LOADM(mask + f);
% endif
    a = select(a, LOADW(row + u - t * SW) * LOADW(weights + t * TURN + f) + a, inside);
  }
  STOREW(sums + u, a);
}

// A row of taps: where all its runs read inside the row, nothing is tested.
inline void add_row(global ACC *restrict sums, global const ACC *restrict row, global const ACC *restrict weights,
                    global const KEPT_1 *restrict mask) {
  int u = 0;
  ONCE for (; u < FIRST; u += LANES) add_edge(sums, row, weights, mask, u);
  int f = u % SW;
  ONCE for (; u + BLOCK <= SPREAD; u += BLOCK) {
% for n in range(block):
    V a${n} = LOADW(sums + u + ${n} * LANES);
% endfor
    global const ACC *from = row + u, *ws = weights + f;
    ONCE for (int t = 0; t < FULL; ++t, from -= SW, ws += TURN) {
% for n in range(block):
      a${n} = LOADW(from + ${n} * LANES) * LOADW(ws + ${n} * LANES) + a${n};
% endfor
    }
% for n in range(block):
% if rest:
    a${n} = select(a${n}, LOADW(from + ${n} * LANES) * LOADW(ws + ${n} * LANES) + a${n}, LOADM(mask + f + ${n} * LANES));
% endif
    STOREW(sums + u + ${n} * LANES, a${n});
% endfor
    f += BLOCK % SW;
    f -= f >= SW ? SW : 0;
  }
  ONCE for (; u < SPREAD + FIRST; u += LANES) add_edge(sums, row, weights, mask, u);
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void transposed(global const REAL *restrict y, global const REAL *restrict w, OUT_PARAMS, global ACC *restrict workspace) {
  const int item = get_global_id(0);
  global ACC *slot = workspace + (long)item * SLOT + LEAD, *sums = slot + SUMS;
  global KEPT_1 *mask = (global KEPT_1 *)(slot + MASK);
  ONCE for (int j = 0; j < TURN; ++j) mask[j] = j % SW < KW % SW ? -1 : 0;
  const long work = (long)IMAGES * IC * BANDS;
  long held = -1;
  ONCE for (long job = item * work / ITEMS; job < (item + 1) * work / ITEMS; ++job) {
    const long plane = job / BANDS;
    const int c = plane % IC, g = c / ICG, first = (int)(job % BANDS) * ROWS, last = min(first + ROWS, XD * XH);
    if (plane != held) {
      held = plane;
      spread(slot, y + (plane / IC * OC + g * OCG) * (YD * YH * YW), w + ((long)g * OCG * ICG + c % ICG) * (KD * KH * KW));
    }
    const ACC b = ${"LOAD(bias, c)" if bias else "0"};
    ONCE for (int at = first; at < last; ++at) {
      ONCE for (int i = 0; i < LENGTH; i += LANES) STOREW(sums + i, (V)0);
      ONCE for (int o = 0; o < OCG; ++o)
        ONCE for (int tz = 0; tz < KD; ++tz) {
          const int z = at / XH + PD - tz * DD;
          if (z < 0 || z % SD || z / SD >= YD) continue;
          ONCE for (int ty = 0; ty < KH; ++ty) {
            const int h = at % XH + PH - ty * DH;
            if (h < 0 || h % SH || h / SH >= YH) continue;
            global const ACC *row = slot + ((o * YD + z / SD) * YH + h / SH) * PITCH;
            global const ACC *weights = slot + TABLE + ((o * KD + tz) * KH + ty) * (TAPS_W * TURN);
            add_row(sums, row, weights, mask);
          }
        }
      const long p = (plane * (XD * XH) + at) * XW;
      int column = 0;
      ONCE for (; column + LANES <= XW; column += LANES) put_vector(OUT_ARGS, p + column, LOADW(sums + PW + column), b);
      ONCE for (; column < XW; ++column) put_one(OUT_ARGS, p + column, sums[PW + column], b);
    }
  }
}
