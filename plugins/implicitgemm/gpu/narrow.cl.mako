## y[m, pixel] = sum over (c, tap) of w[m, c, tap] x[c, pixel * step + origin + tap * spread] for groups of few output
## channels: each work item sums all of them, in all phases, at ROWS pixels one below the other.
##
## A value that is loaded serves every tap, channel and phase that needs it; neighbours load neighbouring pixels (or
## channels, NHWC). Weights come packed as [group][c][tap][MP] and are the same for neighbours.
##
## Phases of different rows may go to different items, by the launch's second index: more pixels fit in registers.
##
## Kernel, stride, padding and channels written are compiled; a name in capitals is a number of the geometry, which is an
## argument.
##
## rows   pixels of an item along h
## MP     output channels of a group, rounded up to 1, 2 or 4
<%
geo, rows = p.geometry, p.rows
src = geo.source
names, capitals = "zyx", "DHW"
def offset(z, y, x):
    terms = [f"{number} * (INDEX)STEP_{axis}" for number, axis in ((z, "D"), (y, "H"), (x, "W")) if number and (axis != "W" or src.nhwc)]
    return " + ".join(terms + ([str(x)] if x and not src.nhwc else [])) or "0"
wide = {1: "ACC", 2: "ACC2", 4: "ACC4"}[p.mp]
def lane(m): return "" if p.mp == 1 else f".s{m}"
%>\
<%def name="sums(phases)">\
## One guard a depth, a column and a row that are read.
<% columns = p.columns(phases); reads = p.reads(columns) %>\
% for axis in range(3):
% for at in reads[axis]:
  const int ok_${names[axis]}${p.number(at)} = (uint)(${names[axis]} + ${at}) < (uint)SIZE_${capitals[axis]};
% endfor
% endfor
% for number, f in ((number, geo.phases[number]) for number in phases):
% for j in range(rows):
  ${wide} c${number}_${j} = (${wide})(0);
% endfor
% endfor
  for (int c = 0; c < SUMMED; ++c) {
% for (dz, dx), uses in columns.items():
    {
% for dy in sorted({dy for use in uses for dy in use.dy}):
      const ACC v${p.number(dy)} = ok_z${p.number(dz)} && ok_x${p.number(dx)} && ok_y${p.number(dy)} ? LOAD(b, ${offset(dz, dy, dx)}) : (ACC)0;
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
    b += SOURCE_CHANNEL;
  }
% for number, f in ((number, geo.phases[number]) for number in phases):
  {
    const int oz = qz * ${geo.out_step[0]} + ${f.first[0]}, ox = qx * ${geo.out_step[2]} + ${f.first[2]};
    if (oz < TARGET_D && ox < TARGET_W) {
      const OUT_INDEX at = (OUT_INDEX)image * TARGET_IMAGE + (OUT_INDEX)oz * OUT_D + (OUT_INDEX)ox * OUT_W;
% for j in range(rows):
      {
        const int oy = (qy + ${j}) * ${geo.out_step[1]} + ${f.first[1]};
        if (oy < TARGET_H) {
% for m in range(geo.m):
          put(OUT_ARGS, c${number}_${j}${lane(m)}, at + (OUT_INDEX)oy * OUT_H + (OUT_INDEX)(group * ${geo.m} + ${m}) * TARGET_CHANNEL, group * ${geo.m} + ${m});
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
void narrow(global const ACC *restrict packed, global const REAL *restrict b, OUT_PARAMS NUMBERS) {
  const long item = get_global_id(0);
  if (item >= ITEMS_ALL) return;
% if src.nhwc:
  const long pixel = DIVIDED(item, GROUPS);
  const int group = item - pixel * GROUPS;
% else:
  const long pixel = item;
% endif
  const long line = DIVIDED(pixel, COUNT_W), block = DIVIDED(line, BLOCKS), plane = DIVIDED(block, COUNT_D);
  const int qx = pixel - line * COUNT_W, qy = (int)(line - block * BLOCKS) * ${rows}, qz = block - plane * COUNT_D;
% if src.nhwc:
  const int image = plane;
% else:
  const int image = DIVIDED(plane, GROUPS), group = plane - (long)image * GROUPS;
% endif
  const int z = qz * ${geo.step[0]}, y = qy * ${geo.step[1]}, x = qx * ${geo.step[2]};
  packed += (long)group * SUMMED * ${geo.volume * p.mp};
  b += (INDEX)image * SOURCE_IMAGE + (INDEX)group * SUMMED * SOURCE_CHANNEL
      + ((INDEX)z * STEP_D + (INDEX)y * STEP_H + (INDEX)x * STEP_W);
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
kernel void pack(global const REAL *restrict w, global ACC *restrict packed NUMBERS) {
  const int i = get_global_id(0);
  if (i >= PACKED) return;
  const int m = i % ${p.mp}, tap = i / ${p.mp} % ${geo.volume}, channel = i / ${p.mp * geo.volume};
  const int group = DIVIDED(channel, SUMMED), c = channel - group * SUMMED;
  packed[i] = m < ${geo.m} ? LOAD(w, (long)group * SUMMED * ${geo.m * geo.volume} + (long)m * WEIGHT_M + (long)c * WEIGHT_C + (long)tap * WEIGHT_TAP) : (ACC)0;
}
