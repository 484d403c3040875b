## dw[n, c, tap] = sum over (image, pixel) of dy[n, pixel] x[c, pixel * step + tap * spread - pad]
//
// A work item takes bands of rows of one part of the sum, and a chunk of the target channels. It copies the source rows
// of a band into its slot (stage.cl.mako) and dy as [block][pixel][NVL]; then each register tile, JC channels by JW taps
// along w by NV vectors of target channels, runs over all pixels of the band: a source element broadcast, dy in vectors.
// Between bands the tile's sums wait in the part's own area, [g][block][tz][ty][c][tx][NVL]; "reduce" adds the parts.
//
// PARTS    parts of the sum, each over its share of BANDS_ALL bands; CHUNKS: work items that share all groups' NB blocks
// JC, JW   channels and taps of a tile; NV vectors, NVL = NV * LANES; the channels' rest has a separate tile
// ADD      1: the sums are added to dw
#define PLANE ((long)YD * YH * YW)
#define BANDS_ALL (IMAGES * YD * BANDS)
#define AREA ((long)G * NB * TD * TH * TW * C * NVL)

// Copies one block of dy for the band's pixels; beyond the last channel it repeats the last one, whose sums are unused.
#define CHANNEL(n) (N % NVL ? min(n, count - 1) : (n))
__attribute__((noinline))
void stage_gradient(global ACC *restrict to, global const REAL *restrict y, int image, int g, int n0, int z, int y0, int places) {
  const int count = min(NVL, N - n0);
% if inter:
  global const REAL *from = y + (((long)image * YD + z) * YH + y0) * (YW * (long)(N * G)) + g * N + n0;
  ONCE for (int q = 0; q < places; ++q, from += N * G, to += NVL) stage_run(to, from, 0, count, NVL);
% else:
  global const REAL *from = y + (((long)image * G + g) * N + n0) * PLANE + ((long)z * YH + y0) * YW;
  const int whole = places >= LANES ? places : 0;  // the last vectors end there
  ONCE for (int next = 0; next < whole; next += LANES) {
    const int q = min(next, places - LANES);
    ONCE for (int n = 0; n < NVL; n += LANES) {
      // The hardware does not prefetch from so many planes.
% for i in range(lanes):
      const long at${i} = CHANNEL(n + ${i}) * PLANE + q;
      __builtin_prefetch((const void *)(size_t)(from + at${i} + 64));
      const V t0_${i} = LOADV(from + at${i});
% endfor
<% stages = lanes.bit_length() - 1 %>\
${transposed(lanes)}
% for i in range(lanes):
      STOREW(to + (q + ${i}) * NVL + n, t${stages}_${i});
% endfor
    }
  }
  ONCE for (int q = whole; q < places; ++q)
    for (int n = 0; n < NVL; ++n) to[q * NVL + n] = LOAD(from, CHANNEL(n) * PLANE + q);
% endif
}
<%
px = "CP" if inter else "1"
line = "(WIDTH * CP)" if inter else "WP"
def place(j):
    c, t = divmod(j, jw)
    return f"{t} * DW * CP + {c}" if inter else f"{c} * (TD * ROWS * WP) + {t} * DW"
%>
% for channels in heights:
// ${channels} channels by ${jw} taps over all pixels of a band.
inline void tile_${channels}(global const ACC *restrict xs, global const ACC *restrict gs, global ACC *restrict ts, int rows, int first) {
% for j in range(channels * jw):
  V ${", ".join(f"a{j}_{v}" for v in range(nv))};
% endfor
  if (first) {
% for j in range(channels * jw):
    ${" ".join(f"a{j}_{v} = 0;" for v in range(nv))}
% endfor
  } else {
% for j, v in pairs(range(channels * jw), range(nv)):
    a${j}_${v} = LOADW(ts + ${j // jw} * TW * NVL + ${j % jw} * NVL + ${v * lanes});
% endfor
  }
  ONCE for (int row = 0; row < rows; ++row) {
    global const ACC *xt = xs + row * SH * ${line};
    ONCE for (int column = 0; column < YW; ++column, xt += SW * ${px}, gs += NVL) {
% for v in range(nv):
      const V w${v} = LOADW(gs + ${v * lanes});
% endfor
% for j in range(channels * jw):
      const ACC b${j} = xt[${place(j)}];
% for v in range(nv):
      a${j}_${v} = b${j} * w${v} + a${j}_${v};
% endfor
% endfor
    }
  }
% for j, v in pairs(range(channels * jw), range(nv)):
  STOREW(ts + ${j // jw} * TW * NVL + ${j % jw} * NVL + ${v * lanes}, a${j}_${v});
% endfor
}
% endfor

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void weights(global const REAL *restrict x, global const REAL *restrict y, global ACC *workspace, long slots_off,
             int pd, int ph, int pw) {
  const int part = get_global_id(0), chunk = get_global_id(1);
  const int first = (int)((long)chunk * (G * NB) / CHUNKS), stop = (int)((long)(chunk + 1) * (G * NB) / CHUNKS);
  global ACC *slot = workspace + slots_off + (long)(part * CHUNKS + chunk) * SLOT;
  global ACC *gradient = slot + SLOT_X;
  const int begin = (int)((long)part * BANDS_ALL / PARTS), end = (int)((long)(part + 1) * BANDS_ALL / PARTS);
  ONCE for (int g = first / NB; g * NB < stop; ++g) {
    const int block0 = max(0, first - g * NB), block1 = min(NB, stop - g * NB);
    ONCE for (int band = begin; band < end; ++band) {
      const int y0 = band % BANDS * R, z = band / BANDS % YD, image = band / (BANDS * YD);
      const int rows = min(R, YH - y0);
      stage(slot, x, image, g, z, y0, pd, ph, pw);
      ONCE for (int block = block0; block < block1; ++block) {
        stage_gradient(gradient, y, image, g, block * NVL, z, y0, rows * YW);
        global ACC *ts = workspace + part * AREA + (long)(g * NB + block) * (TD * TH * TW * (long)C * NVL);
        ONCE for (int tz = 0; tz < TD; ++tz)
          ONCE for (int ty = 0; ty < TH; ++ty, ts += (long)C * TW * NVL) {
            global const ACC *xt = slot + (tz * ROWS + ty * DH) * ${line};
            ONCE for (int tx = 0; tx < TW; tx += JW) {
              int c = 0;
              ONCE for (; c + JC <= C; c += JC)
                tile_${heights[0]}(xt + tx * DW * ${px} + (long)c * ${"1" if inter else "(TD * ROWS * WP)"}, gradient, ts + ((long)c * TW + tx) * NVL, rows, band == begin);
% if len(heights) > 1:
              tile_${heights[1]}(xt + tx * DW * ${px} + (long)c * ${"1" if inter else "(TD * ROWS * WP)"}, gradient, ts + ((long)c * TW + tx) * NVL, rows, band == begin);
% endif
            }
          }
      }
    }
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void reduce(global const ACC *restrict areas, global REAL *restrict w) {
  const int block = get_global_id(1) % NB, g = get_global_id(1) / NB, c = get_global_id(0);
  const int count = min(NVL, N - block * NVL);
  w += (long)g * W_GROUP + (long)block * NVL * WN + (long)c * WC;
  areas += (long)get_global_id(1) * (TD * TH * TW * (long)C * NVL) + (long)c * TW * NVL;
  ONCE for (int t = 0; t < TD * TH; ++t)
    ONCE for (int tx = 0; tx < TW; ++tx) {
      global const ACC *from = areas + ((long)t * C * TW + tx) * NVL;
% for v in range(nv):
      V s${v} = LOADW(from + ${v * lanes});
% endfor
      ONCE for (int part = 1; part < PARTS; ++part) {
% for v in range(nv):
        s${v} += LOADW(from + part * AREA + ${v * lanes});
% endfor
      }
      union { V v[NV]; ACC s[NVL]; } sums;
% for v in range(nv):
      sums.v[${v}] = s${v};
% endfor
      global REAL *to = w + (long)(t * TW + tx) * WT;
      ONCE for (int n = 0; n < count; ++n) {
        ACC v = sums.s[n];
        if (ADD) v += LOAD(to, (long)n * WN);
        STORE(to, (long)n * WN, v);
      }
    }
}
<%! from itertools import product as pairs %>
