## partial[part][n, tap, k] = sum over places of dy[place, n] x[place * step + origin + tap * spread, k], for n and k of one
## group, on tensor cores: 16-bit numbers, channels last, read from memory as fragments.
##
## A warp sums one row of taps of a slab of 32 channels of x and one of dy, over every so many runs of 16 places. Lane
## 4 g + t reads channels 4 g .. 4 g + 3 of places 4 t .. 4 t + 3, 8 bytes each, and turns pairs of places into registers:
## rows g and g + 8 of the fragments of x are channels 4 g + 2 i and 4 g + 2 i + 1, column g of those of dy is 4 g + j.
## The group's warps are added in their order.
##
## warps   of a work group; per: runs of a part
<%
t, walk = job.tile, job.walk
src, dst, steps = walk.source, walk.target, walk.source.axes
kx, lines = walk.kernel[2], walk.kernel[0] * walk.kernel[1]
places, phase = walk.images * walk.phases[0].places, walk.phases[0]
sums = kx * 32
unroll = "" if emulate else "#pragma unroll"
%>\
#define INDEX ${job.index}
inline uint low2(uint a, uint b) { return (a & 0xffffu) | (b << 16); }
inline uint high2(uint a, uint b) { return (a >> 16) | (b & 0xffff0000u); }
kernel __attribute__((reqd_work_group_size(${t.items}, 1, 1)))
void sums(global const ushort *restrict dy, global const ushort *restrict x, global float *restrict partial) {
  local float4 area[${t.items * 2}] __attribute__((aligned(128)));
  SCRATCH(${t.items});
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  int rest = get_group_id(0);
  const int line = rest % ${lines};
  rest /= ${lines};
  const int pair = rest % ${job.slab_pairs}, part = rest / ${job.slab_pairs};
  const int n0 = pair / ${job.sources} * 32, k0 = (pair / ${job.sources} * 32 / ${walk.m} * ${walk.c} / 32 + pair % ${job.sources}) * 32;
  const int tap_z = line / ${walk.kernel[1]} * ${walk.spread[0]} + (${phase.origin[0]}), tap_y = line % ${walk.kernel[1]} * ${walk.spread[1]} + (${phase.origin[1]});
  const int n_in = n0 + lane / 4 * 4 < ${dst.channels}, k_in = k0 + lane / 4 * 4 < ${src.channels};
  float sum[${sums}];
${unroll}
  for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
  const int to = min((part + 1) * ${job.per}, ${-(-places // 16)});
  for (int turn = 0; turn < ${-(-job.per // t.warps)}; ++turn) {
    const int run = part * ${job.per} + turn * ${t.warps} + warp, last = run < to ? ${places} : 0;
    uint2 d[4];
    uint b[4][2];
% for e in range(4):
    const int place${e} = run * 16 + lane % 4 * 4 + ${e}, real${e} = place${e} < last;
    const int image${e} = place${e} / ${phase.places}, z${e} = place${e} / ${phase.count[1] * phase.count[2]} % ${phase.count[0]} * ${walk.step[0]} + tap_z;
    const int y${e} = place${e} / ${phase.count[2]} % ${phase.count[1]} * ${walk.step[1]} + tap_y, x${e} = place${e} % ${phase.count[2]} * ${walk.step[2]};
    const int row${e} = real${e} && k_in && (uint)y${e} < ${src.size[1]} && (uint)z${e} < ${src.size[0]};
    const INDEX at${e} = (INDEX)image${e} * ${src.image} + (INDEX)z${e} * ${steps[0]} + (INDEX)y${e} * ${steps[1]} + (INDEX)x${e} * ${steps[2]} + (k0 + lane / 4 * 4);
    d[${e}] = real${e} && n_in ? *(global const uint2 *)(dy + ((INDEX)place${e} * ${dst.channels} + (n0 + lane / 4 * 4))) : (uint2)(0u, 0u);
% endfor
% for pair in (0, 1):
    b[0][${pair}] = low2(d[${2 * pair}].x, d[${2 * pair + 1}].x);
    b[1][${pair}] = high2(d[${2 * pair}].x, d[${2 * pair + 1}].x);
    b[2][${pair}] = low2(d[${2 * pair}].y, d[${2 * pair + 1}].y);
    b[3][${pair}] = high2(d[${2 * pair}].y, d[${2 * pair + 1}].y);
% endfor
% for tap in range(kx):
<% dx = phase.origin[2] + tap * walk.spread[2] %>\
    {
      uint2 v[4];
      uint a[2][4];
% for e in range(4):
      v[${e}] = row${e} && (uint)(x${e} + ${dx}) < ${src.size[2]} ? *(global const uint2 *)(x + (at${e} + (${dx * steps[2]}))) : (uint2)(0u, 0u);
% endfor
% for i, word in enumerate("xy"):
      a[${i}][0] = low2(v[0].${word}, v[1].${word});
      a[${i}][1] = high2(v[0].${word}, v[1].${word});
      a[${i}][2] = low2(v[2].${word}, v[3].${word});
      a[${i}][3] = high2(v[2].${word}, v[3].${word});
% endfor
${unroll}
      for (int j = 0; j < 4; ++j) {
        MMA(sum + ${tap * 32} + j * 4, a[0], b[j]);
        MMA(sum + ${tap * 32 + 16} + j * 4, a[1], b[j]);
      }
    }
% endfor
  }
  // Of a lane's sums those of one group count: row g (+ 8) is channel 4 g + 2 i (+ 1), columns 2 t, 2 t + 1 are 8 t + j, 8 t + 4 + j.
  partial += (long)part * ${job.size};
  local float *meet = (local float *)area;
% for tap in range(kx):
% for i in range(2):
% for jj in range(2):
  barrier(CLK_LOCAL_MEM_FENCE);
${unroll}
  for (int q = 0; q < 8; ++q) meet[q * ${t.items} + tid] = sum[${tap * 32 + i * 16 + jj * 8} + q];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int item = tid; item < 256; item += ${t.items}) {
    const int q = item / 32, of = item % 32;
    float v = meet[q * ${t.items} + of];
    for (int other = 1; other < ${t.warps}; ++other) v += meet[q * ${t.items} + other * 32 + of];
    const int j = ${jj * 2} + q / 4, k = k0 + of / 4 * 4 + ${2 * i} + q % 4 / 2, n = n0 + (of % 4 * 2 + q % 2) * 4 + j;
    if (n < ${dst.channels} && k < ${src.channels} && n / ${walk.m} == k / ${walk.c})
      partial[((long)n * ${walk.volume} + (line * ${kx} + ${tap})) * ${walk.c} + k % ${walk.c}] = v;
  }
% endfor
% endfor
% endfor
}
