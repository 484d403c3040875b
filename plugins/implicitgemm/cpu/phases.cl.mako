## target[n, start + pixel * stride] = epilogue(sum over (c, tap) of w[n, c, tap] source[c, pixel + tap * spread - pad])
//
// All phases of a stride in one launch, NCHW: elements of the target that are congruent modulo the stride see the same
// taps. A work item copies the source rows of a band into its slot, zeros around them. Places are counted through the
// slot's rows, so that narrow images fill vectors too; pixels beyond a row's end are computed and dropped. Tiles of MR
// target channels by NV vectors of pixels write their sums behind the slot, phase by phase, from where a row of the
// target takes them in turns.
//
// LANES, V   elements of a vector of sums, its type
// MR, NB     target channels of a tile, blocks of them; NV vectors of a tile
// R          pixels of a band along h; ROWS source rows belong to it, of WP elements; PLANE elements a channel
// X? Y?      source and target size; SW stride along w; YW0 the most pixels of a row
// C, N, G    source and target channels per group, groups; ITEMS work items of JOBS
// SUMS       elements of a channel's sums of a phase
#include <convdispatch/first_lanes.cl>
// packed[g, block][phase][c][tap][MR], zeros beyond the last channel.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off) {
  const int block = get_global_id(0) % NB, g = get_global_id(0) / NB, count = min(MR, N - block * MR);
  const int c0 = get_global_id(1) * PACK_C, c1 = min(c0 + PACK_C, C);
  w += (long)g * W_GROUP + (long)block * MR * WN;
  packed += packed_off + (long)get_global_id(0) * WBLOCK;
% for phase in phases:
% if phase.volume:
  ONCE for (int c = c0; c < c1; ++c)
    ONCE for (int ty = 0; ty < ${phase.taps[1]}; ++ty)
      ONCE for (int tx = 0; tx < ${phase.taps[2]}; ++tx) {
        const int tap = (${phase.w_first[1]} + ty * ${phase.w_step[1]}) * KW + ${phase.w_first[2]} + tx * ${phase.w_step[2]};
        global ACC *to = packed + ${phase.before} + ((c * ${phase.taps[1]} + ty) * ${phase.taps[2]} + tx) * MR;
        ONCE for (int n = 0; n < MR; ++n) to[n] = n < count ? LOAD(w, (long)n * WN + (long)c * WC + tap) : (ACC)0;
      }
% endif
% endfor
}

% for ny, nx in shapes:
// One tile over ${ny} x ${nx} taps.
__attribute__((noinline))
void tile_${ny}_${nx}(global const ACC *restrict xs, global const ACC *restrict ws, global ACC *restrict sums) {
% for i in range(mr):
  V ${", ".join(f"a{i}_{v} = 0" for v in range(nv))};
% endfor
  ONCE for (int c = 0; c < C; ++c, xs += PLANE)
    ONCE for (int ty = 0; ty < ${ny}; ++ty)
      ONCE for (int tx = 0; tx < ${nx}; ++tx, ws += MR) {
        global const ACC *xt = xs + ty * (DH * WP) + tx * DW;
% for v in range(nv):
        const V x${v} = LOADW(xt + ${v * lanes});
% endfor
% for i in range(mr):
        const ACC w${i} = ws[${i}];
% for v in range(nv):
        a${i}_${v} = w${i} * x${v} + a${i}_${v};
% endfor
% endfor
      }
% for i in range(mr):
% for v in range(nv):
  STOREW(sums + ${i} * SUMS + ${v * lanes}, a${i}_${v});
% endfor
% endfor
}
% endfor

// The rows y0 to y0 + ROWS - 1 of a group's channels; column 0 of the slot is column X0 of the source.
inline void stage(global ACC *restrict slot, global const REAL *restrict x, int y0) {
  ONCE for (int c = 0; c < C; ++c, slot += PLANE, x += XH * XW)
    ONCE for (int row = 0; row < ROWS; ++row) {
      global ACC *to = slot + row * WP;
      if ((uint)(y0 + row) < XH) {
        zero_run(to, ${low});
        copy_run(to + ${low}, x + (y0 + row) * XW + ${low + x0}, ${high - low});
        zero_run(to + ${high}, WP - ${high});
      } else {
        zero_run(to, WP);
      }
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void conv(global const REAL *restrict x, global const ACC *restrict packed, long packed_off, global ACC *workspace,
          OUT_PARAMS) {
  global ACC *slot = workspace + (long)get_global_id(0) * SLOT, *sums = slot + SLOT_X;
  int staged = -1;
  const int last = (int)((long)(get_global_id(0) + 1) * JOBS / ITEMS);
  ONCE for (int job = (int)((long)get_global_id(0) * JOBS / ITEMS); job < last; ++job) {
    const int block = job % NB, band = job / NB, y0 = band % BANDS * R, plane = band / BANDS;  // plane: (image, group)
    const int g = plane % G, rows = min(R, YH0 - y0);
    if (band != staged) stage(slot, x + (long)plane * (C * XH * XW), y0 + ROW0);
    staged = band;
    global const ACC *ws = packed + packed_off + ((long)g * NB + block) * WBLOCK;
    const int vectors = ((rows - 1) * WP + YW0 + LANES - 1) / LANES;
    ONCE for (int v = 0; v < vectors; v += NV) {
      const int at = max(0, min(v, vectors - NV)) * LANES;
% for phase in phases:
% if phase.volume:
      tile_${phase.taps[1]}_${phase.taps[2]}(slot + at + ${phase.at}, ws + ${phase.before}, sums + at + ${phase.number} * (MR * SUMS));
% endif
% endfor
    }
    ONCE for (int i = 0; i < min(MR, N - block * MR); ++i) {
      const int n = g * N + block * MR + i;
      const ACC b = ${"LOAD(bias, n)" if bias else "0"};
      const long to = ((long)plane * N + block * MR + i) * (YH * YW);
% for first, row in rows_of_phases:
      ONCE for (int r = 0; r < rows; ++r) {
        const int y = (y0 + r) * SH + ${first};
        if (y >= YH) break;
        ONCE for (int q = 0; q < YW; q += SW * LANES) {
          union { V v[SW]; ACC s[SW * LANES]; } u;
          global const ACC *from = sums + i * SUMS + r * WP + q / SW;
% for f in range(step):
          u.v[${f}] = ${f"LOADW(from + {row[f].number} * (MR * SUMS))" if f < len(row) and row[f].volume else "(V)(0)"};
% endfor
          const int size = min(SW * LANES, YW - q);
          const long p = to + y * YW + q;
% if step == 1:
          put_first(OUT_ARGS, p, u.v[0], size, b);
% elif step == 2:
          put_pairs(OUT_ARGS, p, u.v[0], u.v[1], size, b);
% else:
          ONCE for (int j = 0; j < size; ++j) put_one(OUT_ARGS, p + j, u.s[j % SW * LANES + j / SW], b);
% endif
        }
      }
% endfor
    }
  }
}
