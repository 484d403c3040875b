## y[place, n] = sum over (tap, k) of source[place * step + origin + tap * spread, k] w[n, tap, k] on tensor cores, 16-bit
## numbers, channels last: lanes read a pixel's channels from memory as the fragments' registers, nothing is copied before.
##
## A slab is 32 channels. Lane 4 g + t reads channels 8 t .. 8 t + 7 of the pixels of rows g and g + 8, 16 bytes: the first
## four are its k's of the first product of tensor cores, the others of the second. Any order of k will do that weights
## share. Columns 2 t and 2 t + 1 of the four fragments of columns are channels 8 t + 2 j, 8 t + 2 j + 1 of the target, so
## that a lane writes 16 bytes too. Weights lie in local memory as the fragments' registers, zeros between groups.
##
## frag_m   fragments of 16 places of a warp; turns: tiles of a warp
## pairs    products of tensor cores a tap: (step of k, fragment of columns)
<%
t, walk = job.tile, job.walk
src, dst, steps, phases = walk.source, walk.target, walk.source.axes, walk.phases
rows, pairs, volume = range(2 * t.frag_m), job.pairs, walk.volume
forward = job.problem.direction == "fwd"
whole = dst.channels % 32 == 0
from_whole = src.channels % 32 == 0
per_slab = job.sources * len(pairs) * 32
unroll = "" if emulate else "#pragma unroll"
%>\
#define INDEX ${job.index}
// w[n, tap, k], zero between groups.
inline uint weight(global const ushort *w, int n, int tap, int k) {
  if (n >= ${dst.channels} || k >= ${src.channels} || n / ${walk.m} != k / ${walk.c}) return 0;
% if forward:
  return w[((long)n * ${volume} + tap) * ${walk.c} + k % ${walk.c}];
% else:
  return w[((long)k * ${volume} + tap) * ${walk.m} + n % ${walk.m}];
% endif
}
kernel __attribute__((reqd_work_group_size(${t.items}, 1, 1)))
void grouped(global const ushort *restrict w, global const ushort *restrict b, OUT_PARAMS) {
  local uint4 area[${-(-job.local_bytes // 16)}] __attribute__((aligned(128)));
  SCRATCH(${t.items});
  local uint2 *weights = (local uint2 *)area;
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  int rest = get_group_id(0);
  const int slab = rest % ${job.targets};
  rest /= ${job.targets};
  const int phase = rest % ${len(phases)}, block = rest / ${len(phases)};
  const int first = slab * 32 / ${walk.m} * ${walk.c} / 32;
% for f, phase in enumerate(phases):
<% taps = job.taps(phase); places = walk.images * phase.places %>\
${f"if (phase == {f})" if len(phases) > 1 else ""} {
    for (int i = tid; i < ${len(taps) * per_slab}; i += ${t.items}) {
      const int of = i % 32, pair = i / 32 % ${len(pairs)}, source = i / ${32 * len(pairs)} % ${job.sources}, number = i / ${per_slab};
      const int step = ${" : ".join(f"pair == {q} ? {k}" for q, (k, _) in enumerate(pairs))} : 0;
      const int column = ${" : ".join(f"pair == {q} ? {n}" for q, (_, n) in enumerate(pairs))} : 0;
      const int tap = ${" : ".join(f"number == {q} ? {tap[0]}" for q, tap in enumerate(taps)) or "0 ? 0"} : 0;
      const int n = slab * 32 + of / 8 * 8 + column * 2 + of / 4 % 2, k = (first + source) * 32 + of % 4 * 8 + step * 4;
      weights[i] = (uint2)(weight(w, n, tap, k) | weight(w, n, tap, k + 1) << 16, weight(w, n, tap, k + 2) | weight(w, n, tap, k + 3) << 16);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int turn = 0; turn < ${t.turns}; ++turn) {
      const int place0 = ((block * ${t.turns} + turn) * ${t.warps} + warp) * ${t.frag_m * 16} + lane / 4;
% for r in rows:
      int z${r}, y${r}, x${r}, image${r};
      {
        const int place = place0 + ${r * 8}, within = place < ${places} ? place : 0;
        image${r} = within / ${phase.places};
        z${r} = within / ${phase.count[1] * phase.count[2]} % ${phase.count[0]} * ${walk.step[0]};
        y${r} = place < ${places} ? within / ${phase.count[2]} % ${phase.count[1]} * ${walk.step[1]} : ${1 << 20};
        x${r} = within % ${phase.count[2]} * ${walk.step[2]};
      }
      const INDEX at${r} = (INDEX)image${r} * ${src.image} + (INDEX)z${r} * ${steps[0]} + (INDEX)(place0 + ${r * 8} < ${places} ? y${r} : 0) * ${steps[1]} + (INDEX)x${r} * ${steps[2]} + lane % 4 * 8;
% endfor
      float sum[${t.frag_m * 16}];
${unroll}
      for (int i = 0; i < ${t.frag_m * 16}; ++i) sum[i] = 0;
% if taps:
      for (int source = 0; source < ${job.sources}; ++source) {
        const int channel = (first + source) * 32;
% if not from_whole:
        const int some = channel + lane % 4 * 8 < ${src.channels};
% elif job.sources > 1:
        const int some = channel < ${src.channels};
% endif
% for number, (_, dz, dy, dx) in enumerate(taps):
        {
          uint a[${t.frag_m}][2][4];
% for r in rows:
          {
            const int within = ${"" if from_whole and job.sources == 1 else "some && "}(uint)(y${r} + ${dy}) < ${src.size[1]} && (uint)(x${r} + ${dx}) < ${src.size[2]}${f" && (uint)(z{r} + {dz}) < {src.size[0]}" if src.size[0] > 1 or dz else ""};
            const uint4 u = within ? *(global const uint4 *)(b + (at${r} + channel + (${dz * steps[0] + dy * steps[1] + dx * steps[2]}))) : (uint4)(0u, 0u, 0u, 0u);
            a[${r // 2}][0][${r % 2}] = u.x;
            a[${r // 2}][0][${r % 2 + 2}] = u.y;
            a[${r // 2}][1][${r % 2}] = u.z;
            a[${r // 2}][1][${r % 2 + 2}] = u.w;
          }
% endfor
% for q, (k, n) in enumerate(pairs):
          {
            const uint2 v = weights[${number * per_slab + q * 32} + source * ${len(pairs) * 32} + lane];
            uint held[2];
            held[0] = v.x;
            held[1] = v.y;
${unroll}
            for (int i = 0; i < ${t.frag_m}; ++i) MMA(sum + i * 16 + ${n * 4}, a[i][${k}], held);
          }
% endfor
        }
% endfor
      }
% endif
% for r in rows:
      if (place0 + ${r * 8} < ${places}${"" if whole else f" && slab * 32 + lane % 4 * 8 < {dst.channels}"}) {
        const int channel = slab * 32 + lane % 4 * 8;
        const OUT_INDEX to = (OUT_INDEX)image${r} * ${dst.image} + (OUT_INDEX)(z${r}${f" / {walk.step[0]}" if walk.step[0] > 1 else ""} * ${walk.out_step[0]} + ${phase.first[0]}) * ${dst.axes[0]}
            + (OUT_INDEX)(y${r}${f" / {walk.step[1]}" if walk.step[1] > 1 else ""} * ${walk.out_step[1]} + ${phase.first[1]}) * ${dst.axes[1]} + (OUT_INDEX)(x${r}${f" / {walk.step[2]}" if walk.step[2] > 1 else ""} * ${walk.out_step[2]} + ${phase.first[2]}) * ${dst.axes[2]} + channel;
        float v[8];
${unroll}
        for (int j = 0; j < 4; ++j) {
          v[2 * j] = sum[${r // 2 * 16} + j * 4 + ${r % 2 * 2}];
          v[2 * j + 1] = sum[${r // 2 * 16} + j * 4 + ${r % 2 * 2 + 1}];
        }
        put8(OUT_ARGS, v, to, channel);
      }
% endfor
    }
  }
% endfor
}
