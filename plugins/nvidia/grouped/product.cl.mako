## y[place, n] = sum over (tap, k) of source[place * step + origin + tap * spread, k] w[n, tap, k] on tensor cores, 16-bit
## numbers, NHWC: a work group copies the pixels of a region of places once, for all taps and phases.
##
## Local memory holds pixels, [pixel][channel], lines of which ldmatrix reads, and weights as the fragments' registers,
## zeros between groups. A slab is 32 channels of the target. Columns 2 t and 2 t + 1 of fragments 2 s and 2 s + 1 are the
## channels 16 s + 4 t .. 16 s + 4 t + 3, so that a lane writes 8 bytes and four lanes 32.
##
## frag_m   fragments of 16 places of a warp; turns: regions of a work group
## pairs    products of tensor cores a tap: (half of a slab of the source, fragment of columns)
<%
t, geometry, region = tiling.tile, tiling.geometry, tiling.region
src, dst, phases = geometry.source, geometry.target, geometry.phases
rows, pairs, volume, chunks = range(2 * t.frag_m), tiling.pairs, geometry.volume, tiling.sources * 4
forward = tiling.problem.direction == "fwd"
whole = dst.channels % 32 == 0
pixel_bytes = region.pixels * tiling.pitch
unroll = "" if emulate else "#pragma unroll"
numbers = [(f, tap) for f, phase in enumerate(phases) for tap in geometry.reads(phase)]
first_of = [sum(phase.volume for phase in phases[:f]) for f in range(len(phases))]
%>\
#define INDEX ${tiling.index}
// w[n, tap, k], zero between groups.
inline uint weight(global const ushort *w, int n, int tap, int k) {
  if (n >= ${dst.channels} || k >= ${src.channels} || n / ${geometry.m} != k / ${geometry.c}) return 0;
% if forward:
  return w[((long)n * ${volume} + tap) * ${geometry.c} + k % ${geometry.c}];
% else:
  return w[((long)k * ${volume} + tap) * ${geometry.m} + n % ${geometry.m}];
% endif
}
#if !PARTIAL
inline void put4_narrow(OUT_PARAMS, float v0, float v1, float v2, float v3, OUT_INDEX at, int row) {
  v0 = finished(OUT_ARGS, v0, at, row);
  v1 = finished(OUT_ARGS, v1, at + 1, row + 1);
  v2 = finished(OUT_ARGS, v2, at + 2, row + 2);
  v3 = finished(OUT_ARGS, v3, at + 3, row + 3);
  *(global uint2 *)(out + at) = (uint2)(narrow(v0) | (uint)narrow(v1) << 16, narrow(v2) | (uint)narrow(v3) << 16);
}
#endif
kernel __attribute__((reqd_work_group_size(${t.items}, 1, 1)))
void grouped(global const ushort *restrict w, global const ushort *restrict b, OUT_PARAMS) {
  local uint4 area[${-(-tiling.local_bytes // 16)}] __attribute__((aligned(128)));
  SCRATCH(${t.items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  local uint2 *weights = (local uint2 *)(memory + ${pixel_bytes});
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int slab = get_group_id(0) % ${tiling.targets}, block = get_group_id(0) / ${tiling.targets};
  const int channel0 = slab * 32 / ${geometry.m} * ${geometry.c} / 32 * 32;
% for number, (_, tap) in enumerate(numbers):
  for (int i = tid; i < ${tiling.sources * len(pairs) * 32}; i += ${t.items}) {
    const int of = i % 32, pair = i / 32 % ${len(pairs)}, source = i / ${32 * len(pairs)};
% if len(pairs) == 4:
    const int half_k = pair / 2, column = pair;
% else:
    const int half_k = pair / 4, column = pair % 4;
% endif
    const int n = slab * 32 + column / 2 * 16 + of / 8 * 4 + column % 2 * 2 + of / 4 % 2, k = channel0 + source * 32 + half_k * 16 + of % 4 * 2;
    weights[${number * tiling.sources * len(pairs) * 32} + i] = (uint2)(weight(w, n, ${tap[0]}, k) | weight(w, n, ${tap[0]}, k + 1) << 16, weight(w, n, ${tap[0]}, k + 8) | weight(w, n, ${tap[0]}, k + 9) << 16);
  }
% endfor
% for i in range(t.frag_m):
  uint line${i};
  {
    const int real = (warp * ${t.frag_m} + ${i}) * 16 + lane % 16, place = real < ${region.places} ? real : 0;
    line${i} = ${region.at(geometry.step)} * ${tiling.pitch} + lane / 16 * 16;
  }
% endfor
  for (int region = block; region < ${tiling.regions}; region += ${tiling.blocks}) {
    const int column0 = region % ${tiling.count[2]} * ${region.columns}, row0 = region / ${tiling.count[2]} % ${tiling.count[1]} * ${region.rows};
    const int image0 = region / ${tiling.count[2] * tiling.count[1]} * ${region.images};
    for (int i = tid; i < ${region.pixels * chunks}; i += ${t.items}) {
      const int chunk = i % ${chunks}, pixel = i / ${chunks}, image = image0 + pixel / ${region.width * region.height};
      const int y = row0 * ${geometry.step[1]} + pixel / ${region.width} % ${region.height} + (${region.low[0]}), x = column0 * ${geometry.step[2]} + pixel % ${region.width} + (${region.low[1]});
      const int channel = channel0 + chunk * 8;
      const int exists = image < ${geometry.images} && channel < ${src.channels} && (uint)y < ${src.size[1]} && (uint)x < ${src.size[2]};
      const INDEX at = exists ? (INDEX)image * ${src.image} + (INDEX)y * ${src.axes[1]} + (INDEX)x * ${src.axes[2]} + channel : 0;
      copy16(memory, base, pixel * ${tiling.pitch} + chunk * 16, b + at, exists);
    }
    copies_commit();
    COPIES_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
% for f, phase in enumerate(phases):
    {
      float sum[${t.frag_m * 16}];
${unroll}
      for (int i = 0; i < ${t.frag_m * 16}; ++i) sum[i] = 0;
% if phase.volume:
      for (int source = 0; source < ${tiling.sources}; ++source) {
        local const uint2 *held = weights + source * ${len(pairs) * 32} + lane;
        const uint from = source * 64;
% for number, (_, dz, dy, dx) in enumerate(geometry.reads(phase), first_of[f]):
        {
          uint a[${t.frag_m}][4];
% for k in range(2):
% for i in range(t.frag_m):
          LDMATRIX(a[${i}], line${i} + from + ${((dy - region.low[0]) * region.width + dx - region.low[1]) * tiling.pitch + k * 32});
% endfor
% for q, (half, n) in enumerate(pairs):
% if half == k:
          {
            const uint2 v = held[${(number * tiling.sources * len(pairs) + q) * 32}];
            uint two[2];
            two[0] = v.x;
            two[1] = v.y;
${unroll}
            for (int i = 0; i < ${t.frag_m}; ++i) MMA(sum + i * 16 + ${n * 4}, a[i], two);
          }
% endif
% endfor
% endfor
        }
% endfor
      }
% endif
% for r in rows:
      {
        const int place = (warp * ${t.frag_m} + ${r // 2}) * 16 + ${r % 2 * 8} + lane / 4;
        const int image = image0 + place / ${region.rows * region.columns}, row = row0 + place / ${region.columns} % ${region.rows}, column = column0 + place % ${region.columns};
        if (place < ${region.places} && image < ${geometry.images} && row < ${phase.count[1]} && column < ${phase.count[2]}) {
          const OUT_INDEX to = (OUT_INDEX)image * ${dst.image} + (OUT_INDEX)(row * ${geometry.out_step[1]} + ${phase.first[1]}) * ${dst.axes[1]} + (OUT_INDEX)(column * ${geometry.out_step[2]} + ${phase.first[2]}) * ${dst.axes[2]};
% for s in range(2):
          {
            const int channel = slab * 32 + ${s * 16} + lane % 4 * 4;
${"" if whole else f"            if (channel < {dst.channels})"}
            put4_narrow(OUT_ARGS, ${", ".join(f"sum[{r // 2 * 16 + n * 4 + r % 2 * 2 + e}]" for n in (2 * s, 2 * s + 1) for e in range(2))}, to + channel, channel);
          }
% endfor
        }
      }
% endfor
    }
% endfor
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
