## dw[n, c, tap] = sum over (image, pixel) of dy[n, pixel] x[c, pixel * step + tap * spread - pad]: few channels, NCHW
//
// The vector axis is the sum's own: pixels, counted through the rows of a band, so that a group of four channels fills
// vectors as well as one of forty. A work item takes groups and a part of the sum, copies the source rows of a band
// (planes.cl.mako) and dy in rows as long, zeros between them, and runs tiles of MN target channels by JC source channels
// by JW taps along w over the band. A tile's vectors are then added across their lanes, to SUMS numbers of the part.
//
// MN, JC, JW    a tile; NBN, NBC, NBT blocks of them, the last ones of channels end at the last channel
// SUMS          MN * JC * JW in whole vectors
// C, N, GROUPS  source and target channels per group, groups
// PARTS         parts of the sum; ITEMS work items share the GROUPS * PARTS jobs
// PLANE, DY     elements of a channel of the slot, and of dy's copy; AREA those of a group's sums
// ADD           1: the sums are added to dw
#define BANDS_ALL (IMAGES * YD * BANDS)
<%
def joined(vectors):
    """The expression of one vector whose lane i is the sum over the lanes of vectors[i]."""
    names = list(vectors)
    lines, level = [], 0
    while len(names) > 1:
        pairs = [(names[k], names[k + 1]) for k in range(0, len(names), 2)]
        names = [f"{names[0].split('_')[0]}_{level}_{k}" for k in range(len(pairs))]
        lines += [
            f"const V {name} = (V)({a}.even, {b}.even) + (V)({a}.odd, {b}.odd);" for name, (a, b) in zip(names, pairs)
        ]
        level += 1
    return lines, names[0]
count = mn * jc * jw
padded = -(-count // lanes) * lanes
%>
// dy as [n][row][WP], zeros beyond a row's end and up to a vector beyond the last row's.
inline void stage_gradient(global ACC *restrict to, global const REAL *restrict y, int rows) {
  ONCE for (int n = 0; n < N; ++n, y += YD * YH * YW, to += DY) {
    ONCE for (int row = 0; row < rows; ++row) {
      copy_run(to + row * WP, y + row * YW, YW);
      zero_run(to + row * WP + YW, WP - YW);
    }
    zero_run(to + rows * WP, LANES);
  }
}

__attribute__((noinline))
void tile(global const ACC *restrict xs, global const ACC *restrict gs, global ACC *restrict sums, int vectors, int first) {
% for n in range(mn):
  V ${", ".join(f"a{n * jc * jw + j} = 0" for j in range(jc * jw))};
% endfor
  ONCE for (int v = 0; v < vectors; ++v, xs += LANES, gs += LANES) {
% for j in range(jc * jw):
<% c, t = divmod(j, jw) %>\
    const V x${j} = LOADW(xs + ${c} * PLANE + ${t * spread_w % step_w} * PART + ${t * spread_w // step_w});
% endfor
% for n in range(mn):
    const V g${n} = LOADW(gs + ${n} * DY);
% for j in range(jc * jw):
    a${n * jc * jw + j} = g${n} * x${j} + a${n * jc * jw + j};
% endfor
% endfor
  }
% for i in range(count, padded):
  const V a${i} = 0;
% endfor
% for first in range(0, padded, lanes):
<% lines, name = joined([f"a{i}" for i in range(first, first + lanes)]) %>\
% for line in lines:
  ${line}
% endfor
  STOREW(sums + ${first}, first ? ${name} : LOADW(sums + ${first}) + ${name});
% endfor
}

// All parts of a group's sums into dw. Sums that are not finite are computed again (plain_sum.cl).
inline void finish(global const ACC *restrict sums, global REAL *restrict w, global const REAL *restrict x,
                   global const REAL *restrict y, int g, int pd, int ph, int pw) {
  ONCE for (int bn = 0; bn < NBN; ++bn)
    ONCE for (int bc = 0; bc < NBC; ++bc)
      ONCE for (int t = 0; t < TD * TH * NBT; ++t, sums += SUMS) {
        const int n0 = min(bn * MN, N - MN), c0 = min(bc * JC, C - JC);
        ONCE for (int i = 0; i < MN * JC * JW; ++i) {
          const int n = n0 + i / (JC * JW), c = c0 + i / JW % JC;
          ACC v = sums[i];
          ONCE for (int part = 1; part < PARTS; ++part) v += sums[(long)part * (GROUPS * AREA) + i];
          if (n < bn * MN || c < bc * JC) continue;  // an earlier block's
          if (v * 0 != 0) v = plain_sum(x, y, g, n, c, t / NBT, t % NBT * JW + i % JW, pd, ph, pw);
          const long at = (((long)g * N + n) * C + c) * (TD * TH * TW) + t / NBT * TW + t % NBT * JW + i % JW;
          if (ADD) v += LOAD(w, at);
          STORE(w, at, v);
        }
      }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void weights(global const REAL *restrict x, global const REAL *restrict y, global REAL *restrict w,
             global ACC *restrict workspace, int pd, int ph, int pw) {
  const int item = get_global_id(0);
  global ACC *slot = workspace + SLOTS + (long)item * SLOT, *gradient = slot + SLOT_X;
  zero_run(slot, SLOT_X);  // rows' rests meet zeros of dy, and must be finite
  const int last = (int)((long)(item + 1) * (GROUPS * PARTS) / ITEMS);
  ONCE for (int job = (int)((long)item * (GROUPS * PARTS) / ITEMS); job < last; ++job) {
    const int g = job / PARTS, part = job % PARTS;
    global ACC *area = workspace + ((long)part * GROUPS + g) * AREA;
    const int begin = (int)((long)part * BANDS_ALL / PARTS), end = (int)((long)(part + 1) * BANDS_ALL / PARTS);
    ONCE for (int band = begin; band < end; ++band) {
      const int y0 = band % BANDS * R, z = band / BANDS % YD, image = band / (BANDS * YD), rows = min(R, YH - y0);
      ONCE for (int c = 0; c < C; ++c) stage(slot + c * PLANE, x, image, g * C + c, z, y0, pd, ph, pw);
      stage_gradient(gradient, y + (((long)image * GROUPS + g) * N * YD + z) * (YH * YW) + y0 * YW, rows);
      const int vectors = ((rows - 1) * WP + YW + LANES - 1) / LANES;
      global ACC *sums = area;
      ONCE for (int bn = 0; bn < NBN; ++bn)
        ONCE for (int bc = 0; bc < NBC; ++bc)
          ONCE for (int t = 0; t < TD * TH; ++t)
            ONCE for (int bt = 0; bt < NBT; ++bt, sums += SUMS) {
              const int ty = t % TH, tx = bt * JW * DW;
              global const ACC *xt = slot + min(bc * JC, C - JC) * PLANE + ty * DH % SH * (SW * PART) + tx % SW * PART
                                     + (t / TH * PROWS + ty * DH / SH) * WP + tx / SW;
              tile(xt, gradient + min(bn * MN, N - MN) * DY, sums, vectors, band == begin);
            }
    }
    if (PARTS == 1) finish(area, w, x, y, g, pd, ph, pw);
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void reduce(global const REAL *restrict x, global const REAL *restrict y, global REAL *restrict w,
            global const ACC *restrict workspace, int pd, int ph, int pw) {
  const int g = get_global_id(0);
  finish(workspace + (long)g * AREA, w, x, y, g, pd, ph, pw);
}
