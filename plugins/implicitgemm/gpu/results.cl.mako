## Stores a work item's sums to the result, or to the partial sums in the workspace.
<%namespace name="grid" file="places.cl.mako"/>\
% if f.data:
  const OUT_INDEX c_at = ${"(OUT_INDEX)part * OUT_SIZE" if f.partial else "0"};
% for n in range(quads_n):
% for lane in ((0,) if f.out_vector == "n" else range(4)):
  OUT_INDEX to${n}_${lane};
  const int n${n}_${lane} = n0 + tx * 4 + ${n * (bn // quads_n) + lane};
  {
    const int n = min(n${n}_${lane}, n_end - 1), image = ${divided("n", places)}, pixel = n - image * ${places};
% if f.out_plain:
    to${n}_${lane} = c_at + (OUT_INDEX)image * TARGET_IMAGE + (OUT_INDEX)pixel * TARGET_X;
% else:
${grid.pixel_of("pixel", True)}\
    to${n}_${lane} = c_at + (OUT_INDEX)image * TARGET_IMAGE + (OUT_INDEX)(pixel_z * OUT_STEP_Z + ${first[0]}) * TARGET_Z
        + (OUT_INDEX)(pixel_y * OUT_STEP_Y + ${first[1]}) * TARGET_Y + (OUT_INDEX)(pixel_x * OUT_STEP_X + ${first[2]}) * TARGET_X;
% endif
  }
% endfor
% endfor
% for q in range(quads_m):
% if f.out_vector == "m":
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m)}, row = group * TARGET_CHANNELS + m;
    if (m < TARGET_CHANNELS) {
% for n, lane in pairs(range(quads_n), range(4)):
      if (n${n}_${lane} < n_end) put4(OUT_ARGS, (ACC4)(${", ".join(f"c{q}_{r}_{n}.s{lane}" for r in range(4))}), to${n}_${lane} + row, row);
% if f.sums:
      if (n${n}_${lane} < n_end) {
        const ACC4 stored = LOAD4(out + to${n}_${lane} + row);
        ${" ".join(f"c{q}_{r}_{n}.s{lane} = stored.s{r};" for r in range(4))}
      }
% endif
% endfor
    }
  }
% else:
% for r in range(4):
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m) + r}, row = group * TARGET_CHANNELS + m;
    if (m < TARGET_CHANNELS) {
% for n in range(quads_n):
% if f.out_vector == "n":
      if (n${n}_0 < n_end) put4(OUT_ARGS, c${q}_${r}_${n}, to${n}_0 + (OUT_INDEX)row * TARGET_CHANNEL, row);
% if f.sums:
      if (n${n}_0 < n_end) c${q}_${r}_${n} = LOAD4(out + to${n}_0 + (OUT_INDEX)row * TARGET_CHANNEL);
% endif
% else:
% for lane in range(4):
      if (n${n}_${lane} < n_end) put(OUT_ARGS, c${q}_${r}_${n}.s${lane}, to${n}_${lane} + (OUT_INDEX)row * TARGET_CHANNEL, row);
% if f.sums:
      if (n${n}_${lane} < n_end) c${q}_${r}_${n}.s${lane} = LOAD(out, to${n}_${lane} + (OUT_INDEX)row * TARGET_CHANNEL);
% endif
% endfor
% endif
% endfor
    }
  }
% endfor
% endif
% endfor
% else:
  // Partial sums are [part][group][m][n]; n is (tap, channel), or in the weights' own order where taps are flat.
% for q, r in pairs(range(quads_m), range(4)):
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m) + r};
    if (m < TARGET_CHANNELS) {
      global ACC *to = out + (((long)part * GROUPS + group) * TARGET_CHANNELS + m) * N_END;
% for n in range(quads_n):
      {
        const int n = ${f"n_tile * {bn}" if f.flat else "n0"} + tx * 4 + ${n * (bn // quads_n)};
<% end, base = ("N_END", "") if f.flat else ("SOURCE_CHANNELS", "tap * SOURCE_CHANNELS + ") %>\
% if f.n_quads:
        if (n < ${end}) *(global quad *)(to + ${base}n) = c${q}_${r}_${n};
% else:
% for lane in range(4):
        if (n + ${lane} < ${end}) to[${base}n + ${lane}] = c${q}_${r}_${n}.s${lane};
% endfor
% endif
      }
% endfor
    }
  }
% endfor
% endif
<%! from itertools import product as pairs %>
