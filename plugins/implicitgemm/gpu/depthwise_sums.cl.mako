## dw[c, tap] = sum over pixels of dy[pixel, c] x[pixel * step + origin + tap * spread, c]: the weights' gradient of
## depthwise layers. A work item sums all taps of a vector of channels over some tiles of pixels; a group's items are
## added in local memory in a fixed order and leave partial[part][tap][c], which ``reduce`` adds; one part is the result.
##
## lanes, deep   work items of a group: along channels and along pixels
## per           tiles of a part; chunk: sums that local memory holds at a time, of all items
## segments      items that share an element's sum
<%
geo = p.geometry
src, dst, steps = geo.source, geo.target, geo.source.axes
name = lambda at: f"m{-at}" if at < 0 else str(at)
lanes, deep, parts, volume = p.lanes, p.deep, p.parts, geo.volume
along = (0, 1) if p.nhwc else (1, 0)
size = (lanes, deep) if p.nhwc else (deep, lanes)
values = [(tap, i) for tap in range(volume) for i in parts]
chunks = [values[at : at + s.chunk] for at in range(0, len(values), s.chunk)]
segments = s.segments
%>\
#define VECTOR ${p.vector}
#include <convdispatch/words.cl>
#define INDEX ${p.index}
#if ACCUMULATE
#define HELD(i) LOAD(partial, i)
#else
#define HELD(i) 0
#endif
kernel __attribute__((reqd_work_group_size(${size[0]}, ${size[1]}, 1)))
void sums(global const REAL *restrict dy, global const REAL *restrict b, global ${"ACC" if s.parts > 1 else "REAL"} *restrict partial) {
  local Part shared[${s.chunk * lanes * deep}];
  const int lane = get_local_id(${along[0]}), row = get_local_id(${along[1]}), item = row * ${lanes} + lane;
  const int part = get_group_id(${along[1]}), vector = get_group_id(${along[0]}) * ${lanes} + lane;
  const int from = part * ${s.per}, to = ${f"vector < {p.across} ? min(from + {s.per}, {p.tiles}) : 0" if p.slabs * lanes > p.across else f"min(from + {s.per}, {p.tiles})"};
% for tap, i in values:
  Part c${tap}_${i} = (Part)(0);
% endfor
  for (int t = from + row; t < to; t += ${deep}) {
    const int qx = t % ${p.count[2]} * ${p.columns}, qy = t / ${p.count[2]} % ${p.count[1]} * ${p.rows};
    const int qz = t / ${p.count[2] * p.count[1]} % ${p.count[0]}, image = t / ${math.prod(p.count)};
    const int z = qz * ${geo.step[0]}, y = qy * ${geo.step[1]}, x = qx * ${geo.step[2]};
    global const REAL *d = dy + ((INDEX)image * ${dst.image} + (INDEX)qz * ${dst.axes[0]} + (INDEX)qy * ${dst.axes[1]} + (INDEX)qx * ${dst.axes[2]} + (INDEX)vector * ${p.vector * dst.channel});
    global const REAL *s = b + ((INDEX)image * ${src.image} + (INDEX)z * ${steps[0]} + (INDEX)y * ${steps[1]} + (INDEX)x * ${steps[2]} + (INDEX)vector * ${p.vector * src.channel});
% for number, (_, j, i) in enumerate(p.places):
<%
tests = ([f"qy + {j} < {dst.size[1]}"] if dst.size[1] % p.rows else []) + ([f"qx + {i} < {dst.size[2]}"] if dst.size[2] % p.columns else [])
load = f"RAW(d + {j * dst.axes[1] + i * dst.axes[2]})"
%>\
    const Raw e${number} = ${f"{' && '.join(tests)} ? {load} : RAW_NONE" if tests else load};
% endfor
% for number in range(len(p.places)):
    const Part ${", ".join(f"d{number}_{i} = PART(e{number}, {i})" for i in parts)};
% endfor
% for column in p.all_columns:
    const int in${name(column)} = (uint)(x + ${column}) < ${src.size[2]};
% endfor
% for (dz, dy), reads in p.reads.items():
    {
      const int within = (uint)(y + ${dy}) < ${src.size[1]}${f" && (uint)(z + {dz}) < {src.size[0]}" if src.size[0] > 1 or dz else ""};
% for column in p.columns_of(reads):
      const Raw r${name(column)} = within && in${name(column)} ? RAW(s + (${dz * steps[0] + dy * steps[1] + column * steps[2]})) : RAW_NONE;
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
  partial += (long)part * ${volume * geo.groups};
% for chunk in chunks:
% for place, (tap, i) in enumerate(chunk):
  shared[${place * deep * lanes} + item] = c${tap}_${i};
% endfor
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = item; n < ${len(chunk) * lanes * segments}; n += ${lanes * deep}) {
    const int of = n % ${lanes}, segment = n / ${lanes} % ${segments};
    local Part *at = shared + n / ${lanes * segments} * ${deep * lanes} + of;
    Part sum = at[segment * ${lanes}];
    for (int other = segment + ${segments}; other < ${deep}; other += ${segments}) sum += at[other * ${lanes}];
% if segments > 1:
    at[segment * ${lanes}] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = item; n < ${len(chunk) * lanes}; n += ${lanes * deep}) {
    const int of = n % ${lanes};
    local Part *at = shared + n / ${lanes} * ${deep * lanes} + of;
    Part sum = at[0];
    for (int other = 1; other < ${segments}; ++other) sum += at[other * ${lanes}];
    const int number = ${values.index(chunk[0])} + n / ${lanes};
% else:
    const int number = ${values.index(chunk[0])} + n / ${lanes * segments};
% endif
    const int channels = (get_group_id(${along[0]}) * ${lanes} + of) * ${p.vector} + number % ${len(parts)} * ${p.part};
% if s.parts > 1:
    if (channels < ${geo.groups}) *(global Part *)(partial + number / ${len(parts)} * ${geo.groups} + channels) = sum;
% else:
    if (channels < ${geo.groups}) {
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
