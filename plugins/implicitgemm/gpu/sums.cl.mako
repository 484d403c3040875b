<%! from itertools import product as pairs %>
## The sums of this work group's part of each channel, of the results as they are stored: each work item's columns, then
## the work items of a row in their order, by the formula of Chan, Golub and LeVeque (1979).
<%
slope = f.slope
vector = f.out_vector == "n"
valid = lambda n, lane: f"n{n}_{0 if vector else lane} < n_end"
def place(n, lane):
    return f"to{n}_0 + {lane}" if vector else f"to{n}_{lane}"
cells = list(pairs(range(quads_n), range(4)))
%>\
  {
    local ACC *row_sums = shared;
    const ACC count = ${" + ".join(f"({valid(n, lane)})" for n, lane in cells)};
% for q, r in pairs(range(quads_m), range(4)):
    {
      const int m = ty * 4 + ${q * (bm // quads_m) + r};
      ACC sum = 0, squares = 0;
% if slope:
      if (m0 + m < TARGET_CHANNELS) {
        const int row = group * TARGET_CHANNELS + m0 + m;
% for n, lane in cells:
        if (${valid(n, lane)}) {
          sum += c${q}_${r}_${n}.s${lane};
          squares += c${q}_${r}_${n}.s${lane} * (LOAD(saved, ${place(n, lane)} + (OUT_INDEX)row * TARGET_CHANNEL) - norm[row]);
        }
% endfor
      }
% else:
      const ACC origin = c${q}_${r}_0.s0;
% for n, lane in cells:
      if (${valid(n, lane)}) sum += c${q}_${r}_${n}.s${lane} - origin;
% endfor
      const ACC mean = count > 0 ? sum / count : 0;
% for n, lane in cells:
      if (${valid(n, lane)}) squares += (c${q}_${r}_${n}.s${lane} - origin - mean) * (c${q}_${r}_${n}.s${lane} - origin - mean);
% endfor
      sum = origin + mean;
% endif
      row_sums[(m * ${columns} + tx) * 2] = sum;
      row_sums[(m * ${columns} + tx) * 2 + 1] = squares;
    }
% endfor
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int m = tid; m < ${bm}; m += ${items}) {
      ACC count = 0, sum = 0, squares = 0;
      for (int column = 0; column < ${columns}; ++column) {
        local const ACC *from = row_sums + (m * ${columns} + column) * 2;
% if slope:
        sum += from[0];
        squares += from[1];
% else:
        const int first = n0 + column * 4;
        const ACC added = ${" + ".join(f"clamp(n_end - first - {n * (bn // quads_n)}, 0, 4)" for n in range(quads_n))};
        if (added > 0) {
          const ACC total = count + added, delta = from[0] - sum;
          squares += from[1] + delta * (delta * (count * added / total));
          sum += delta * added / total;
          count = total;
        }
% endif
      }
      if (m0 + m < TARGET_CHANNELS) {
        global ACC *to = parts + PARTS_AT + (long)(${"number * N_TILES + n_tile" if f.phased else "n_tile"}) * ${2 if slope else 3} * GROUPS * TARGET_CHANNELS + group * TARGET_CHANNELS + m0 + m;
% if not slope:
        *to = count;
        to += GROUPS * TARGET_CHANNELS;
% endif
        to[0] = sum;
        to[GROUPS * TARGET_CHANNELS] = squares;
      }
    }
  }
