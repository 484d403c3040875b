## y[pixel, c] = sum over tap of w[c, tap] x[pixel * step + origin + tap * spread, c]: forward and data gradient of
## depthwise layers, a vector of channels (NHWC; otherwise one) and a tile of pixels a work item.
##
## Local memory holds the weights of the group's channels, [tap][part][lane], so that lanes read neighbours. A row of the
## source is read once for all taps, pixels and phases.
##
## lanes, deep   work items of a group: along channels and along pixels; the former are neighbours NHWC
## turns         tiles of an item
<%
geo = p.geometry
src, dst, steps = geo.source, geo.target, geo.source.axes
name = lambda at: f"m{-at}" if at < 0 else str(at)
lanes, deep, parts = p.lanes, p.deep, p.parts
of_w = geo.volume
along = (0, 1) if p.nhwc else (1, 0)  # axes of the launch: channels, tiles
size = (lanes, deep) if p.nhwc else (deep, lanes)
%>\
#define VECTOR ${p.vector}
#include <convdispatch/words.cl>
#define INDEX ${p.index}
kernel __attribute__((reqd_work_group_size(${size[0]}, ${size[1]}, 1)))
void depthwise(global const REAL *restrict w, global const REAL *restrict b, OUT_PARAMS) {
  local Part weights[${of_w * len(parts) * lanes}];
  const int lane = get_local_id(${along[0]}), slab = get_group_id(${along[0]}), c0 = slab * ${lanes * p.vector}, vector = slab * ${lanes} + lane;
  {
    local ACC *to = (local ACC *)weights;
    for (int i = get_local_id(${along[1]}) * ${lanes} + lane; i < ${lanes * p.vector * of_w}; i += ${lanes * deep}) {
      const int c = i / ${of_w}, tap = i % ${of_w}, in = c % ${p.vector};
      to[((tap * ${len(parts)} + in / ${p.part}) * ${lanes} + c / ${p.vector}) * ${p.part} + in % ${p.part}] = ${f"c0 + c < {geo.groups} ? LOAD(w, (long)c0 * {of_w} + i) : (ACC)0" if p.slabs * lanes * p.vector > geo.groups else f"LOAD(w, (long)c0 * {of_w} + i)"};
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
% if p.slabs * lanes > p.across:
  if (vector >= ${p.across}) return;
% endif
% if p.turns > 1:
  for (int turn = 0; turn < ${p.turns}; ++turn) {
  int tile = (get_group_id(${along[1]}) * ${p.turns} + turn) * ${deep} + get_local_id(${along[1]});
% else:
  {
  int tile = get_group_id(${along[1]}) * ${deep} + get_local_id(${along[1]});
% endif
  if (tile >= ${p.tiles}) return;
  const int qx = tile % ${p.count[2]} * ${p.columns};
  tile /= ${p.count[2]};
  const int qy = tile % ${p.count[1]} * ${p.rows};
  tile /= ${p.count[1]};
  const int qz = tile % ${p.count[0]}, image = tile / ${p.count[0]};
  const int z = qz * ${geo.step[0]}, y = qy * ${geo.step[1]}, x = qx * ${geo.step[2]};
  global const REAL *from = b + ((INDEX)image * ${src.image} + (INDEX)z * ${steps[0]} + (INDEX)y * ${steps[1]} + (INDEX)x * ${steps[2]} + (INDEX)vector * ${p.vector * src.channel});
% for column in p.all_columns:
  const int in${name(column)} = (uint)(x + ${column}) < ${src.size[2]};
% endfor
% for number in range(len(p.places)):
  Part ${", ".join(f"a{number}_{i} = (Part)(0)" for i in parts)};
% endfor
% for (dz, dy), row in p.reads.items():
  {
    const int within = (uint)(y + ${dy}) < ${src.size[1]}${f" && (uint)(z + {dz}) < {src.size[0]}" if src.size[0] > 1 or dz else ""};
% for column in p.columns_of(row):
    const Raw r${name(column)} = within && in${name(column)} ? RAW(from + (${dz * steps[0] + dy * steps[1] + column * steps[2]})) : RAW_NONE;
% endfor
% for column in p.columns_of(row):
    const Part ${", ".join(f"v{name(column)}_{i} = PART(r{name(column)}, {i})" for i in parts)};
% endfor
% for tap, uses in row.items():
    {
      const Part ${", ".join(f"w{i} = weights[{(tap * len(parts) + i) * lanes} + lane]" for i in parts)};
% for number, column in uses:
% for i in parts:
      a${number}_${i} = w${i} * v${name(column)}_${i} + a${number}_${i};
% endfor
% endfor
    }
% endfor
  }
% endfor
  const int channel = vector * ${p.vector};
% for number, (f, j, i) in enumerate(p.places):
<% phase = geo.phases[f] %>\
  {
    const int oz = qz * ${geo.out_step[0]} + ${phase.first[0]}, oy = (qy + ${j}) * ${geo.out_step[1]} + ${phase.first[1]}, ox = (qx + ${i}) * ${geo.out_step[2]} + ${phase.first[2]};
    if (${"oz < " + str(dst.size[0]) + " && " if dst.size[0] > 1 else ""}oy < ${dst.size[1]} && ox < ${dst.size[2]}) {
      const OUT_INDEX at = (OUT_INDEX)image * ${dst.image} + (OUT_INDEX)oz * ${dst.axes[0]} + (OUT_INDEX)oy * ${dst.axes[1]} + (OUT_INDEX)ox * ${dst.axes[2]} + (OUT_INDEX)channel * ${dst.channel};
#if BIAS
      const Raw more = RAW(bias + channel);
% for k in parts:
      a${number}_${k} += PART(more, ${k});
% endfor
#endif
#if RESIDUAL
      const Raw other = RAW(residual + at);
% for k in parts:
      a${number}_${k} += PART(other, ${k});
% endfor
#endif
% for k in parts:
      a${number}_${k} = ACTIVATION(Part, a${number}_${k});
% endfor
#if ACCUMULATE
      const Raw held = RAW(out + at);
% for k in parts:
      a${number}_${k} += PART(held, ${k});
% endfor
#endif
      WRITE(out + at, ${", ".join(f"a{number}_{k}" for k in parts)});
    }
  }
% endfor
  }
}
