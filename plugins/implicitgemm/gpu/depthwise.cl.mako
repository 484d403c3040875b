## y[pixel, c] = sum over tap of w[c, tap] x[pixel * step + origin + tap * spread, c]: forward and data gradient of
## depthwise layers, a vector of channels (NHWC; otherwise one) and a tile of pixels a work item.
##
## Local memory holds the weights of the group's channels, [tap][part][lane], so that lanes read neighbours. A row of the
## source is read once for all taps, pixels and phases.
##
## lanes, deep   work items of a group: along channels and along pixels; the former are neighbours NHWC
## turns         tiles of an item
## Tile, kernel, stride and padding are compiled; a name in capitals is a number of the geometry, which is an argument.
<%
geo = p.geometry
src, dst = geo.source, geo.target
name = lambda at: f"m{-at}" if at < 0 else str(at)
parts, of_w = p.parts, geo.volume
along = (0, 1) if p.nhwc else (1, 0)  # axes of the launch: channels, tiles
def offset(z, y, x):
    terms = [f"{number} * (INDEX)STEP_{axis}" for number, axis in ((z, "D"), (y, "H"), (x, "W")) if number and (axis != "W" or p.nhwc)]
    return " + ".join(terms + ([str(x)] if x and not p.nhwc else [])) or "0"
%>\
#define VECTOR ${p.vector}
#include <convdispatch/words.cl>
#define INDEX ${p.index}
kernel __attribute__((reqd_work_group_size(${p.items}, 1, 1)))
void depthwise(global const REAL *restrict w, global const REAL *restrict b, OUT_PARAMS NUMBERS) {
  local Part weights[${of_w * len(parts) * p.most_lanes}];
  const int id = get_local_id(0), turn_of = DIVIDED(id, FASTER), in_turn = id - turn_of * FASTER;
  const int lane = ${"in_turn" if p.nhwc else "turn_of"}, row_of_tile = ${"turn_of" if p.nhwc else "in_turn"};
  const int slab = get_group_id(${along[0]}), c0 = slab * LANES * ${p.vector}, vector = slab * LANES + lane;
  {
    local ACC *to = (local ACC *)weights;
    for (int i = id; i < LANES * ${p.vector * of_w}; i += ${p.items}) {
      const int c = i / ${of_w}, tap = i % ${of_w}, in = c % ${p.vector};
      to[((tap * ${len(parts)} + in / ${p.part}) * LANES + c / ${p.vector}) * ${p.part} + in % ${p.part}] = c0 + c < CHANNELS ? LOAD(w, (long)c0 * ${of_w} + i) : (ACC)0;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (turn_of >= SLOWER || vector >= VECTORS) return;
% if p.turns > 1:
  for (int turn = 0; turn < ${p.turns}; ++turn) {
  int tile = (get_group_id(${along[1]}) * ${p.turns} + turn) * DEEP + row_of_tile;
% else:
  {
  int tile = get_group_id(${along[1]}) * DEEP + row_of_tile;
% endif
  if (tile >= TILES) return;
  const int line = DIVIDED(tile, COUNT_W), plane = DIVIDED(line, COUNT_H), image = DIVIDED(plane, COUNT_D);
  const int qx = (tile - line * COUNT_W) * ${p.columns}, qy = (line - plane * COUNT_H) * ${p.rows}, qz = plane - image * COUNT_D;
  const int z = qz * ${geo.step[0]}, y = qy * ${geo.step[1]}, x = qx * ${geo.step[2]};
  global const REAL *from = b + ((INDEX)image * SOURCE_IMAGE + (INDEX)z * STEP_D + (INDEX)y * STEP_H + (INDEX)x * STEP_W + (INDEX)vector * ${p.vector} * SOURCE_CHANNEL);
% for column in p.all_columns:
  const int in${name(column)} = (uint)(x + ${column}) < (uint)SIZE_W;
% endfor
% for number in range(len(p.places)):
  Part ${", ".join(f"a{number}_{i} = (Part)(0)" for i in parts)};
% endfor
% for (dz, dy), row in p.reads.items():
  {
    const int within = (uint)(y + ${dy}) < (uint)SIZE_H${f" && (uint)(z + {dz}) < (uint)SIZE_D" if src.size[0] > 1 or dz else ""};
% for column in p.columns_of(row):
    const Raw r${name(column)} = within && in${name(column)} ? RAW(from + (${offset(dz, dy, column)})) : RAW_NONE;
% endfor
% for column in p.columns_of(row):
    const Part ${", ".join(f"v{name(column)}_{i} = PART(r{name(column)}, {i})" for i in parts)};
% endfor
% for tap, uses in row.items():
    {
      const Part ${", ".join(f"w{i} = weights[{tap * len(parts) + i} * LANES + lane]" for i in parts)};
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
    if (${"oz < TARGET_D && " if dst.size[0] > 1 else ""}oy < TARGET_H && ox < TARGET_W) {
      const OUT_INDEX at = (OUT_INDEX)image * TARGET_IMAGE + (OUT_INDEX)oz * OUT_D + (OUT_INDEX)oy * OUT_H + (OUT_INDEX)ox * OUT_W + (OUT_INDEX)channel * TARGET_CHANNEL;
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
