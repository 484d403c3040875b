## dw[c, tap] = sum over pixels of dy[pixel, c] x[pixel * step + origin + tap * spread, c]: the weights' gradient of
## depthwise layers. A work item sums all taps of a vector of channels over some tiles of pixels; a group's items are
## added in local memory in a fixed order and leave partial[part][tap][c], which ``reduce`` adds; one part is the result.
##
## lanes, deep   work items of a group: along channels and along pixels
## per           tiles of a part; chunk: sums that local memory holds at a time, of all items
## segments      items that share an element's sum
## Tile, kernel, stride and padding are compiled; a name in capitals is a number of the geometry, which is an argument.
<%
geo = p.geometry
src, dst = geo.source, geo.target
name = lambda at: f"m{-at}" if at < 0 else str(at)
parts, volume, items = p.parts, geo.volume, p.items
along = (0, 1) if p.nhwc else (1, 0)
values = [(tap, i) for tap in range(volume) for i in parts]
chunk_size = s.chunk_of(items)
chunks = [values[at : at + chunk_size] for at in range(0, len(values), chunk_size)]
def offset(side, z, y, x):
    terms = [f"{number} * (INDEX){side}_{axis}" for number, axis in ((z, "D"), (y, "H"), (x, "W")) if number and (axis != "W" or p.nhwc)]
    return " + ".join(terms + ([str(x)] if x and not p.nhwc else [])) or "0"
%>\
#define VECTOR ${p.vector}
#include <convdispatch/words.cl>
#define INDEX ${p.index}
#if ACCUMULATE
#define HELD(i) LOAD(partial, i)
#else
#define HELD(i) 0
#endif
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void sums(global const REAL *restrict dy, global const REAL *restrict b, global ${"ACC" if s.parts > 1 else "REAL"} *restrict partial NUMBERS) {
  local Part shared[${chunk_size * items}];
  const int id = get_local_id(0), turn_of = DIVIDED(id, FASTER), in_turn = id - turn_of * FASTER, all = LANES * DEEP;
  const int lane = ${"in_turn" if p.nhwc else "turn_of"}, row = ${"turn_of" if p.nhwc else "in_turn"}, item = row * LANES + lane, exists = turn_of < SLOWER;
  const int part = get_group_id(${along[1]}), vector = get_group_id(${along[0]}) * LANES + lane;
  const int from = part * PER, to = exists && vector < VECTORS ? min(from + PER, TILES) : 0;
% for tap, i in values:
  Part c${tap}_${i} = (Part)(0);
% endfor
  for (int t = from + row; t < to; t += DEEP) {
    const int line = DIVIDED(t, COUNT_W), plane = DIVIDED(line, COUNT_H), image = DIVIDED(plane, COUNT_D);
    const int qx = (t - line * COUNT_W) * ${p.columns}, qy = (line - plane * COUNT_H) * ${p.rows}, qz = plane - image * COUNT_D;
    const int z = qz * ${geo.step[0]}, y = qy * ${geo.step[1]}, x = qx * ${geo.step[2]};
    global const REAL *d = dy + ((INDEX)image * TARGET_IMAGE + (INDEX)qz * OUT_D + (INDEX)qy * OUT_H + (INDEX)qx * OUT_W + (INDEX)vector * ${p.vector} * TARGET_CHANNEL);
    global const REAL *s = b + ((INDEX)image * SOURCE_IMAGE + (INDEX)z * STEP_D + (INDEX)y * STEP_H + (INDEX)x * STEP_W + (INDEX)vector * ${p.vector} * SOURCE_CHANNEL);
% for number, (_, j, i) in enumerate(p.places):
<% tests = ([f"qy + {j} < TARGET_H"] if j else []) + ([f"qx + {i} < TARGET_W"] if i else []); load = f"RAW(d + ({offset('OUT', 0, j, i)}))" %>\
    const Raw e${number} = ${f"{' && '.join(tests)} ? {load} : RAW_NONE" if tests else load};
% endfor
% for number in range(len(p.places)):
    const Part ${", ".join(f"d{number}_{i} = PART(e{number}, {i})" for i in parts)};
% endfor
% for column in p.all_columns:
    const int in${name(column)} = (uint)(x + ${column}) < (uint)SIZE_W;
% endfor
% for (dz, dy), reads in p.reads.items():
    {
      const int within = (uint)(y + ${dy}) < (uint)SIZE_H${f" && (uint)(z + {dz}) < (uint)SIZE_D" if src.size[0] > 1 or dz else ""};
% for column in p.columns_of(reads):
      const Raw r${name(column)} = within && in${name(column)} ? RAW(s + (${offset("STEP", dz, dy, column)})) : RAW_NONE;
% endfor
% for column in p.columns_of(reads):
      const Part ${", ".join(f"v{name(column)}_{i} = PART(r{name(column)}, {i})" for i in parts)};
% endfor
% for tap, uses in reads.items():
% for number, column in uses:
% for i in parts:
      c${tap}_${i} = d${number}_${i} * v${name(column)}_${i} + c${tap}_${i};
% endfor
% endfor
% endfor
    }
% endfor
  }
  partial += (long)part * ${volume} * CHANNELS;
% for chunk in chunks:
  if (exists) {
% for place, (tap, i) in enumerate(chunk):
    shared[${place} * all + item] = c${tap}_${i};
% endfor
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = id; n < ${len(chunk)} * LANES * SEGMENTS; n += ${items}) {
    const int others = DIVIDED(n, LANES), of = n - others * LANES, place = DIVIDED(others, SEGMENTS), segment = others - place * SEGMENTS;
    local Part *at = shared + place * all + of;
    Part sum = at[segment * LANES];
    for (int other = segment + SEGMENTS; other < DEEP; other += SEGMENTS) sum += at[other * LANES];
    at[segment * LANES] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = id; n < ${len(chunk)} * LANES; n += ${items}) {
    const int place = DIVIDED(n, LANES), of = n - place * LANES;
    local Part *at = shared + place * all + of;
    Part sum = at[0];
    for (int other = 1; other < SEGMENTS; ++other) sum += at[other * LANES];
    const int number = ${values.index(chunk[0])} + place;
    const int channels = (get_group_id(${along[0]}) * LANES + of) * ${p.vector} + number % ${len(parts)} * ${p.part};
% if s.parts > 1:
    if (channels < CHANNELS) *(global Part *)(partial + number / ${len(parts)} * CHANNELS + channels) = sum;
% else:
    if (channels < CHANNELS) {
% for e in range(p.part):
      {
        const int to = (channels + ${e}) * ${volume} + number / ${len(parts)};
        STORE(partial, to, sum${f".s{e}" if p.part > 1 else ""} + HELD(to));
      }
% endfor
    }
% endif
  }
% if chunk is not chunks[-1]:
  barrier(CLK_LOCAL_MEM_FENCE);
% endif
% endfor
}
