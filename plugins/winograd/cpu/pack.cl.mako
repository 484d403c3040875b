## u[e * e_step + c * NVL] = (G_h w G_w^T)[e] of LANES target channels from n0 on and the source channels c0 to c1.
##
## Where target channels do not follow one another in memory, what does is read in vectors and transposed in registers, in
## squares of LANES by LANES elements: ``turned`` says what their rows hold.
##   runs    the taps of LANES source channels in turn, of one target channel (NCHW)
##   taps    LANES source channels of one tap, of one target channel (NHWC)
##   each    the taps of one source channel, and those of the next target channels behind them (NCHW, rotated)
##   none    target channels follow one another: vectors as they are
##   never   nothing does: one element at a time
##
## first, w_n, w_c, w_t   place of tap 0; elements of w from n to n, from c to c, from tap to tap (below 0: rotated)
## total                  elements of w
<%
count_taps = taps_h * taps_w
squares = -(-count_taps // lanes)
def tap(k):
    return f"({k * taps_w} + j)"
turn = {
    "runs": lambda k: f"LOADL(copy + ((c - at) * {count_taps} + {tap(k)}) * LANES)",
    "taps": lambda k: f"LOADL(copy + ({tap(k)} * LANES + c - at) * LANES)",
    "each": lambda k: f"LOADL(copy + ({first} + {tap(k)} * ({w_t})) * LANES)",
    "none": lambda k: f"LOADV(from + {first} + {tap(k)} * ({w_t}))",
}.get(turned)
%>\
__attribute__((noinline))
void transform_weights(global ACC *restrict u, long e_step, local ACC *restrict copy, global const REAL *restrict w, int g, int n0, int c0, int c1) {
  const int count = clamp(${n_} - n0, 0, LANES);
  w += g * ${group}L + n0 * ${w_n}L;
  ONCE for (int at = c0; at < c1; at += LANES) {
    const int last = min(at + LANES, c1);
% if turned in ("runs", "taps"):
    const int whole = count == LANES && last - at == LANES;
    if (whole) {
      ONCE for (int q = 0; q < ${count_taps}; ++q) {
        local ACC *square = copy + q * LANES * LANES;
        ONCE for (int n = 0; n < LANES; ++n)
          STOREL(square + n * LANES, LOADV(w + n * ${w_n}L + at * ${w_c}L + q * ${"LANES" if turned == "runs" else w_t}));
        transpose(square);
      }
    }
% endif
    ONCE for (int c = at; c < last; ++c, u += NVL) {
      global const REAL *from = w + c * ${w_c}L;
% if turned == "each":
      // The last row's vector reaches into the next channels' taps, which end with the tensor.
      const int whole = count == LANES && g * ${group}L + n0 * ${w_n}L + c * ${w_c}L + ${(lanes - 1) * w_n + squares * lanes} <= ${total}L;
      if (whole)
        ONCE for (int q = 0; q < ${squares}; ++q) {
          ONCE for (int n = 0; n < LANES; ++n) STOREL(copy + (q * LANES + n) * LANES, LOADV(from + n * ${w_n} + q * LANES));
          transpose(copy + q * LANES * LANES);
        }
% elif turned == "none":
      const int whole = count == LANES;
% endif
      V mid[${out_h * taps_w}];
      ONCE for (int j = 0; j < ${taps_w}; ++j) {
        V in[${taps_h}];
% if turn:
        if (whole) {
% for k in range(taps_h):
          in[${k}] = ${turn(k)};
% endfor
        } else
% endif
          ONCE for (int k = 0; k < ${taps_h}; ++k) {
            union { V v; ACC s[LANES]; } some;
            ONCE for (int n = 0; n < LANES; ++n)
              some.s[n] = n < count ? LOAD(from, n * ${w_n}L + ${first} + (k * ${taps_w} + j) * (${w_t})) : (ACC)0;
            in[k] = some.v;
          }
% for k in range(taps_h):
        const V d${k} = in[${k}];
% endfor
${program_h}\
% for k in range(out_h):
        mid[${k * taps_w} + j] = o${k};
% endfor
      }
      ONCE for (int k = 0; k < ${out_h}; ++k) {
% for j in range(taps_w):
        const V d${j} = mid[k * ${taps_w} + ${j}];
% endfor
${program_w}\
% for j in range(out_w):
        STOREW(u + (k * ${out_w} + ${j}) * e_step, o${j});
% endfor
      }
    }
  }
}

% if not packs:
<%
rows, length, row = {
    "none": (f"channels * {count_taps}", "NVL", f"r / {count_taps} * {w_c}L + r % {count_taps} * {abs(w_t)}"),
    "each": ("channels", f"NVL * {count_taps}", f"r * {w_c}L"),
    "runs": ("NVL", f"channels * {count_taps}", f"r * {w_n}L"),
    "taps": (f"NVL * {count_taps}", "channels", f"r / {count_taps} * {w_n}L + r % {count_taps} * {w_t}"),
    "never": ("NVL" if w_c < w_n else "channels", f"{'channels' if w_c < w_n else 'NVL'} * {count_taps}", f"r * {max(w_n, w_c)}L"),
}[turned]
%>// Asks for share ``e`` of E of the weights of a block's target channels from n0 on and of source channels from c0 on.
inline void prefetch_weights(global const REAL *w, int g, int n0, int c0, int channels, int e) {
  const int lines = (${length}) * (int)sizeof(REAL) / 64 + 1, all = (${rows}) * lines;
  w += g * ${group}L + n0 * ${w_n}L + c0 * ${w_c}L;
  ONCE for (int i = e * all / E; i < (e + 1) * all / E; ++i) {
    const int r = i / lines;
    __builtin_prefetch((const void *)(size_t)((global const char *)(w + ${row}) + i % lines * 64), 0, 2);
  }
}
% else:
// packed[g][e][block][c][NVL], 0 beyond the last target channel; of the groups and blocks from ``group`` and ``first`` on.
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void pack(global const REAL *restrict w, global ACC *restrict packed, long packed_off, int group, int first) {
  local ACC copy[TURNED] __attribute__((aligned(64)));
  const int block = first + get_global_id(1);
  const int c0 = get_global_id(0) * ${pack_c}, c1 = min(c0 + ${pack_c}, C);
  global ACC *u = packed + packed_off + get_global_id(2) * E * UE + (get_global_id(1) * C + c0) * NVL;
  ONCE for (int v = 0; v < NVL; v += LANES)
    transform_weights(u + v, UE, copy, w, group + get_global_id(2), block * NVL + v, c0, c1);
}
% endif
