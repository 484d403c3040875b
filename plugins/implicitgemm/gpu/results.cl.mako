## Stores a work item's sums to the result, or to the partial sums in the workspace.
% if p.data:
  const OUT_INDEX c_at = ${f"(OUT_INDEX)part * {p.out_size}" if p.split > 1 else "0"};
% for n in range(quads_n):
% for lane in ((0,) if p.out_vector == "n" else range(4)):
  OUT_INDEX to${n}_${lane};
  const int n${n}_${lane} = n0 + tx * 4 + ${n * (bn // quads_n) + lane};
  {
    const int n = min(n${n}_${lane}, n_end - 1), image = n / ${per}, pixel = n % ${per};
% if p.out_plain:
    to${n}_${lane} = c_at + (OUT_INDEX)image * ${geo.target.image} + (OUT_INDEX)pixel * ${geo.target.axes[2]};
% else:
    to${n}_${lane} = c_at + (OUT_INDEX)image * ${geo.target.image}
        + (OUT_INDEX)(pixel / (${count[1]} * ${count[2]}) * ${geo.out_step[0]} + ${phase("first", 0)}) * ${geo.target.axes[0]}
        + (OUT_INDEX)(pixel / ${count[2]} % ${count[1]} * ${geo.out_step[1]} + ${phase("first", 1)}) * ${geo.target.axes[1]}
        + (OUT_INDEX)(pixel % ${count[2]} * ${geo.out_step[2]} + ${phase("first", 2)}) * ${geo.target.axes[2]};
% endif
  }
% endfor
% endfor
% for q in range(quads_m):
% if p.out_vector == "m":
  {
    const int m = m0 + ty * 4 + ${q * (bm // quads_m)}, row = group * ${geo.m} + m;
    if (m < ${geo.m}) {
% for n, lane in pairs(range(quads_n), range(4)):
      if (n${n}_${lane} < n_end) put4(OUT_ARGS, (ACC4)(${", ".join(f"c{q}_{r}_{n}.s{lane}" for r in range(4))}), to${n}_${lane} + row, row);
% if p.sums:
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
    const int m = m0 + ty * 4 + ${q * (bm // quads_m) + r}, row = group * ${geo.m} + m;
    if (m < ${geo.m}) {
% for n in range(quads_n):
% if p.out_vector == "n":
      if (n${n}_0 < n_end) put4(OUT_ARGS, c${q}_${r}_${n}, to${n}_0 + (OUT_INDEX)row * ${geo.target.channel}, row);
% if p.sums:
      if (n${n}_0 < n_end) c${q}_${r}_${n} = LOAD4(out + to${n}_0 + (OUT_INDEX)row * ${geo.target.channel});
% endif
% else:
% for lane in range(4):
      if (n${n}_${lane} < n_end) put(OUT_ARGS, c${q}_${r}_${n}.s${lane}, to${n}_${lane} + (OUT_INDEX)row * ${geo.target.channel}, row);
% if p.sums:
      if (n${n}_${lane} < n_end) c${q}_${r}_${n}.s${lane} = LOAD(out, to${n}_${lane} + (OUT_INDEX)row * ${geo.target.channel});
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
    if (m < ${geo.m}) {
      global ACC *to = out + (((long)part * ${geo.groups} + group) * ${geo.m} + m) * ${p.n};
% for n in range(quads_n):
      {
        const int n = ${f"n_tile * {bn}" if p.flat else "n0"} + tx * 4 + ${n * (bn // quads_n)};
<% end, base = (p.n, "") if p.flat else (geo.c, f"tap * {geo.c} + ") %>\
% if end % 4 == 0:
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
