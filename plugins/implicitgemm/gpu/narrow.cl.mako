## y[m, pixel] = sum over (c, tap) of w[m, c, tap] x[c, pixel * step + origin + tap * spread] for groups of few output
## channels: each work item sums all of them, in all phases, at ROWS pixels one below the other.
##
## A value that is loaded serves every tap, channel and phase that needs it; neighbours load neighbouring pixels (or
## channels, NHWC). Weights come packed as [group][c][tap][MP] and are the same for neighbours.
##
## Phases of different rows may go to different items, by the launch's second index: more pixels fit in registers.
##
## ROWS   pixels of an item along h
## MP     output channels of a group, rounded up to 1, 2 or 4
<%
geo, rows = p.geometry, p.rows
src, dst, steps = geo.source, geo.target, geo.source.axes
names = "zyx"
wide = {1: "ACC", 2: "ACC2", 4: "ACC4"}[p.mp]
def lane(m): return "" if p.mp == 1 else f".s{m}"
%>\
<%def name="sums(phases)">\
## One guard a depth, a column and a row that are read.
<% columns = p.columns(phases); reads = p.reads(columns) %>\
% for axis in range(3):
% for at in reads[axis]:
  const int ok_${names[axis]}${p.number(at)} = (uint)(${names[axis]} + ${at}) < ${src.size[axis]};
% endfor
% endfor
% for number, f in ((number, geo.phases[number]) for number in phases):
% for j in range(rows):
  ${wide} c${number}_${j} = (${wide})(0);
% endfor
% endfor
  for (int c = 0; c < ${geo.c}; ++c) {
% for (dz, dx), uses in columns.items():
    {
% for dy in sorted({dy for use in uses for dy in use.dy}):
      const ACC v${p.number(dy)} = ok_z${p.number(dz)} && ok_x${p.number(dx)} && ok_y${p.number(dy)} ? LOAD(b, ${dz * steps[0] + dy * steps[1] + dx * steps[2]}) : (ACC)0;
% endfor
% for use in uses:
      {
        const ${wide} w = *(global const ${wide} *)(packed + ${use.tap * p.mp});
% for j in range(rows):
        c${use.phase}_${j} = w * v${p.number(use.dy[j])} + c${use.phase}_${j};
% endfor
      }
% endfor
    }
% endfor
    packed += ${geo.volume * p.mp};
    b += ${src.channel};
  }
% for number, f in ((number, geo.phases[number]) for number in phases):
  {
    const int oz = qz * ${geo.out_step[0]} + ${f.first[0]}, ox = qx * ${geo.out_step[2]} + ${f.first[2]};
    if (oz < ${dst.size[0]} && ox < ${dst.size[2]}) {
      const OUT_INDEX at = (OUT_INDEX)image * ${dst.image} + (OUT_INDEX)oz * ${dst.axes[0]} + (OUT_INDEX)ox * ${dst.axes[2]};
% for j in range(rows):
      {
        const int oy = (qy + ${j}) * ${geo.out_step[1]} + ${f.first[1]};
        if (oy < ${dst.size[1]}) {
% for m in range(geo.m):
          put(OUT_ARGS, c${number}_${j}${lane(m)}, at + (OUT_INDEX)oy * ${dst.axes[1]} + (OUT_INDEX)(group * ${geo.m} + ${m}) * ${dst.channel}, group * ${geo.m} + ${m});
% endfor
        }
      }
% endfor
    }
  }
% endfor
</%def>\
#define ACC2_(T) T##2
#define ACC2_OF(T) ACC2_(T)
#define ACC2 ACC2_OF(ACC)
#define INDEX ${p.index}
kernel __attribute__((reqd_work_group_size(${p.items}, 1, 1)))
void narrow(global const ACC *restrict packed, global const REAL *restrict b, OUT_PARAMS) {
  long item = get_global_id(0);
  if (item >= ${p.work_items}L) return;
% if src.nhwc:
  const int group = item % ${geo.groups};
  item /= ${geo.groups};
% endif
  const int qx = item % ${p.count[2]};
  item /= ${p.count[2]};
  const int qy = (int)(item % ${p.blocks}) * ${rows};
  item /= ${p.blocks};
  const int qz = item % ${p.count[0]};
  item /= ${p.count[0]};
% if not src.nhwc:
  const int group = item % ${geo.groups};
  item /= ${geo.groups};
% endif
  const int image = item;
  const int z = qz * ${geo.step[0]}, y = qy * ${geo.step[1]}, x = qx * ${geo.step[2]};
  packed += (long)group * ${geo.c * geo.volume * p.mp};
  b += (INDEX)image * ${src.image} + (INDEX)group * ${geo.c * src.channel}
      + ((INDEX)z * ${steps[0]} + (INDEX)y * ${steps[1]} + (INDEX)x * ${steps[2]});
% if len(p.sets) == 1:
${sums(p.sets[0])}\
% else:
% for place, phases in enumerate(p.sets):
  if (get_group_id(1) == ${place}) {
${sums(phases)}\
  }
% endfor
% endif
}
## packed[group][c][tap][m] = w; what fills m up to MP is 0.
kernel void pack(global const REAL *restrict w, global ACC *restrict packed) {
  const int i = get_global_id(0);
  if (i >= ${p.packed_elements}) return;
<% w_m, w_c, w_tap = p.weight_strides %>\
  const int m = i % ${p.mp}, tap = i / ${p.mp} % ${geo.volume}, c = i / ${p.mp * geo.volume} % ${geo.c};
  const int group = i / ${p.mp * geo.volume * geo.c};
  packed[i] = m < ${geo.m} ? LOAD(w, (long)group * ${geo.m * geo.c * geo.volume} + (long)m * ${w_m} + (long)c * ${w_c} + (long)tap * ${w_tap}) : (ACC)0;
}
