## C of order.cl in tiles of a CPU's vector registers, over a panel of B in the cache.
//
// A work item computes PN columns and a part of the tiles along m. For each block of k it copies B's columns into its slot,
// +0 for what is outside the source, and runs a tile of PC columns by NV vectors of m over them, a column's value broadcast.
// The blocks' sums wait in the slot; those of a weights' gradient's image are added to the total when the image is done.
//
// LANES, V  elements of a vector of sums, its type; BM = NV * LANES
// PC, PN    columns of a tile, and of a panel
// PITCH     elements of the panel from k to k where neighbours are columns, else from column to column
// PANELS    panels of a group; PARTS: parts of the tiles along m
// RUN       columns that are neighbours in the target: all (weights' gradient), of an image, of a row, or 1
// SLOT      elements of the workspace that a work item has: PANEL of B, SUMS, and the total where it is apart
#define LANES ${lanes}
#define V ${vector}
#include <convdispatch/output_lanes.cl>
#include <convdispatch/runs.cl>
<% k_step, column_step = (1, "PITCH") if k_runs else ("PITCH", 1) %>

// size elements of the source, +0 outside: neighbouring channels (NHWC), or every SW-th column of a row from u on (NCHW),
// of so many channels.
inline void source_run(global ACC *restrict to, global const ACC *restrict x, int image, int channel, int channels, int z,
                       int y, int u, int size) {
  const int inside = (uint)z < XD && (uint)y < XH;
% if nhwc:
  if (inside && (uint)u < XW)
    copy_run(to, x + ((((long)image * XD + z) * XH + y) * XW + u) * (C * G) + channel, size);
  else
    zero_run(to, size);
% else:
  const int begin = inside ? clamp((SW - 1 - u) / SW, 0, size) : size, end = inside ? clamp((XW - 1 - u + SW) / SW, begin, size) : size;
  global const ACC *from = x + ((((long)image * C * G + channel) * XD + z) * XH + y) * XW + u;
  ONCE for (int c = 0; c < channels; ++c, to += PITCH, from += (long)XD * XH * XW) {
    if (begin) zero_run(to, begin);
    if (SW == 1)
      copy_run(to + begin, from + begin, end - begin);
    else
      ONCE for (int i = begin; i < end; ++i) to[i] = from[i * SW];
    if (end < size) zero_run(to + end, size - end);
  }
% endif
}

// Block number of B for count columns from n0 on; the number of its k's.
inline int gather(global ACC *restrict panel, global const ACC *restrict x, int g, int n0, int count, int number) {
% if weights:
  const int image = number / IMAGE, z = number % IMAGE / (IMAGE / YD), first = number % (IMAGE / YD) * CB, rows = min(CB, YH - first);
#define SOURCE(tap, y, u) z * SD + OD + (tap) / (TW * TH) * DD, (first + (y)) * SH + OH + (tap) / TW % TH * DH, (u) * SW + OW + (tap) % TW * DW
% if nhwc:
  ONCE for (int k = 0; k < rows * YW; ++k)
    ONCE for (int n = n0, size; n < n0 + count; n += size) {
      size = min(C - CHANNEL_OF(n), n0 + count - n);
      source_run(panel + k * PITCH + n - n0, x, image, g * C + CHANNEL_OF(n), 1, SOURCE(TAP_OF(n), k / YW, k % YW), size);
    }
% else:
  ONCE for (int n = n0; n < n0 + count; ++n)
    ONCE for (int y = 0; y < rows; ++y)
      source_run(panel + (n - n0) * PITCH + y * YW, x, image, g * C + CHANNEL_OF(n), 1, SOURCE(TAP_OF(n), y, 0), YW);
% endif
  return rows * YW;
% else:
  const int cb = number * CB, channels = min(CB, C - cb);
#define SOURCE(tap, p) (p) / (YW * YH) * SD + OD + (tap) / (TW * TH) * DD, (p) / YW % YH * SH + OH + (tap) / TW % TH * DH, (p) % YW * SW + OW + (tap) % TW * DW
% if nhwc:
  ONCE for (int n = n0; n < n0 + count; ++n)
    ONCE for (int tap = 0; tap < TAPS; ++tap)
      source_run(panel + (n - n0) * PITCH + tap * channels, x, n / PLACES, g * C + cb, 1, SOURCE(tap, n % PLACES), channels);
% else:
  ONCE for (int n = n0, size; n < n0 + count; n += size) {
    size = min(YW - n % YW, n0 + count - n);
    ONCE for (int tap = 0; tap < TAPS; ++tap)
      source_run(panel + tap * channels * PITCH + n - n0, x, n / PLACES, g * C + cb, channels, SOURCE(tap, n % PLACES), size);
  }
% endif
  return EMPTY ? 0 : TAPS * channels;
% endif
}

// PC x NV chains of count products; sums are those of the blocks before, unless this is the first.
inline void tile(global const ACC *restrict b, global const ACC *restrict a, global ACC *restrict sums, int count, int first) {
% for p in range(pc):
  V ${", ".join(f"s{p}_{v} = 0" for v in range(nv))};
% endfor
  ONCE for (int k = 0; k < count; ++k, a += BM, b += ${k_step}) {
% for v in range(nv):
    const V a${v} = LOADW(a + ${v * lanes});
% endfor
% for p in range(pc):
    const V b${p} = b[${p} * ${column_step}];
    ${" ".join(f"s{p}_{v} = fma(b{p}, a{v}, s{p}_{v});" for v in range(nv))}
% endfor
  }
% for p, v in pairs(range(pc), range(nv)):
  STOREW(sums + ${p} * BM + ${v * lanes}, first ? s${p}_${v} : LOADW(sums + ${p} * BM + ${v * lanes}) + s${p}_${v});
% endfor
}

// The target's elements of a tile along m: count columns from n0 on.
inline void finish(OUT_PARAMS, global const ACC *sums, int g, int m0, int n0, int count) {
  const int rows = min(BM, N - m0);
% if nhwc and not weights:
  ONCE for (int n = 0; n < count; ++n, sums += BM) {
    const long at = target_at(g, m0, n0 + n);
    int m = 0;
    ONCE for (; m + LANES <= rows; m += LANES)
      put_vector(OUT_ARGS, at + m, LOADW(sums + m), ${"LOADW(bias + g * N + m0 + m)" if bias else "0"});
    ONCE for (; m < rows; ++m) put_one(OUT_ARGS, at + m, sums[m], ${"bias[g * N + m0 + m]" if bias else "0"});
  }
% else:
  // RUN columns are neighbours in the target: they are transposed, LANES at a time.
  ONCE for (int n = 0, i = 0; n < count; i = 0) {
    const int size = min(RUN - (n0 + n) % RUN, count - n);
    ONCE for (; RUN >= LANES && i + LANES <= size; i += LANES, n += LANES) {
      const long at = target_at(g, m0, n0 + n);
      ONCE for (int m = 0; m < rows; m += LANES) {
% for j in range(lanes):
        const V t0_${j} = LOADW(sums + (n + ${j}) * BM + m);
% endfor
${transposed(lanes)}
% for j in range(lanes):
        if (m + ${j} < rows)
          put_vector(OUT_ARGS, at + (m + ${j}) * (WEIGHTS ? WN : PLANE), t${stages}_${j}, ${f"bias[g * N + m0 + m + {j}]" if bias else "0"});
% endfor
      }
    }
    ONCE for (; i < size; ++i, ++n)
      ONCE for (int m = 0; m < rows; ++m)
        put_one(OUT_ARGS, target_at(g, m0 + m, n0 + n), sums[n * BM + m], ${"bias[g * N + m0 + m]" if bias else "0"});
  }
% endif
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const ACC *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace, OUT_PARAMS) {
  const int item = get_global_id(0), last = (int)((long)(item + 1) * JOBS / ITEMS);
  global ACC *panel = workspace + (long)item * SLOT, *sums = panel + PANEL, *total = sums + (IMAGE < BLOCKS ? SUMS : 0);
  ONCE for (int job = (int)((long)item * JOBS / ITEMS); job < last; ++job) {
    const int part = job % PARTS, n0 = job / PARTS % PANELS * PN, g = job / PARTS / PANELS, count = min(PN, COLUMNS - n0);
    const int first = part * MB / PARTS, tiles = (part + 1) * MB / PARTS - first;
    global const ACC *a = packed + packed_off + (long)(g * MB + first) * KA * BM;
    ONCE for (int block = 0; block < BLOCKS; ++block) {
      const int depth = gather(panel, x, g, n0, count, block);
      ONCE for (int m = 0; m < tiles; ++m)
        ONCE for (int n = 0; n < count; n += PC)
          tile(panel + n * ${column_step}, a + (long)m * KA * BM, sums + (m * PN + n) * BM, depth, block % IMAGE == 0);
      a += depth * BM;
      if (IMAGE < BLOCKS && (block + 1) % IMAGE == 0)
        ONCE for (int i = 0; i < tiles * PN * BM; i += LANES)
          STOREW(total + i, block < IMAGE ? LOADW(sums + i) : LOADW(total + i) + LOADW(sums + i));
    }
    ONCE for (int m = 0; m < tiles; ++m)
      finish(OUT_ARGS, total + m * PN * BM, g, (first + m) * BM, n0, count);
  }
}
<%! from itertools import product as pairs %>
