## partial[part][n, tap, k] = sum over places of dy[place, n] x[place * step + origin + tap * spread, k], for n and k of one
## group, on tensor cores: 16-bit numbers, NHWC. A work group copies the pixels of a region of places once, 32
## channels of x and of dy, for all taps; ldmatrix turns them, for k runs along places.
##
## A warp sums one row of taps, ``split`` warps every so many runs of 16 places of it; their sums meet in their order. Rows g
## and g + 8 of half i of x's fragments are channels 16 i + g and 16 i + g + 8, column g of fragment j of dy is 8 j + g.
##
## lines   rows of taps; split: warps of each; per: regions of a part
## pairs   products of tensor cores a tap: (half of x's channels, fragment of dy's)
<%
t, geometry, region = tiling.tile, tiling.geometry, tiling.region
src, dst, phase, pairs = geometry.source, geometry.target, geometry.phases[0], tiling.pairs
kx, lines, split, runs = geometry.kernel[2], geometry.kernel[1], t.split, -(-region.places // 16)
each = len(pairs) * 4
unroll = "" if emulate else "#pragma unroll"
dy_at, table_at = region.pixels * 80, region.pixels * 80 + runs * 16 * 80
%>\
#define INDEX ${tiling.index}
kernel __attribute__((reqd_work_group_size(${tiling.items}, 1, 1)))
void sums(global const ushort *restrict dy, global const ushort *restrict x, global float *restrict partial) {
  local uint4 area[${-(-tiling.local_bytes // 16)}] __attribute__((aligned(128)));
  SCRATCH(${tiling.items});
  local uchar *memory = (local uchar *)area;
  const uint base = LOCAL_BASE(memory);
  local uint *table = (local uint *)(memory + ${table_at});
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32, line = warp % ${lines}, side = warp / ${lines};
  const int pair = get_group_id(0) % ${tiling.slab_pairs}, part = get_group_id(0) / ${tiling.slab_pairs};
  const int n0 = pair / ${tiling.sources} * 32, k0 = n0 / ${geometry.m} * ${geometry.c} / 32 * 32 + pair % ${tiling.sources} * 32;
  // Where a place's first tap reads; places beyond the region read its first, and multiply zeros of dy.
  for (int i = tid; i < ${runs * 16}; i += ${tiling.items}) {
    const int place = i < ${region.places} ? i : 0;
    table[i] = ${region.at(geometry.step)} * 80;
  }
  float sum[${kx * each}];
${unroll}
  for (int i = 0; i < ${kx * each}; ++i) sum[i] = 0;
  const int last = min((part + 1) * ${tiling.per}, ${tiling.regions});
  const int turned = lane % 8 + lane / 16 * 8, across = lane / 8 % 2 * 16;
  for (int region = part * ${tiling.per}; region < last; ++region) {
    const int column0 = region % ${tiling.count[2]} * ${region.columns}, row0 = region / ${tiling.count[2]} % ${tiling.count[1]} * ${region.rows};
    const int image0 = region / ${tiling.count[2] * tiling.count[1]} * ${region.images};
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = tid; i < ${region.pixels * 4}; i += ${tiling.items}) {
      const int pixel = i / 4, channel = k0 + i % 4 * 8, image = image0 + pixel / ${region.width * region.height};
      const int y = row0 * ${geometry.step[1]} + pixel / ${region.width} % ${region.height} + (${region.low[0]}), c = column0 * ${geometry.step[2]} + pixel % ${region.width} + (${region.low[1]});
      const int exists = image < ${geometry.images} && channel < ${src.channels} && (uint)y < ${src.size[1]} && (uint)c < ${src.size[2]};
      const INDEX at = exists ? (INDEX)image * ${src.image} + (INDEX)y * ${src.axes[1]} + (INDEX)c * ${src.axes[2]} + channel : 0;
      copy16(memory, base, pixel * 80 + i % 4 * 16, x + at, exists);
    }
    for (int i = tid; i < ${runs * 64}; i += ${tiling.items}) {
      const int place = i / 4, channel = n0 + i % 4 * 8, image = image0 + place / ${region.rows * region.columns};
      const int y = row0 + place / ${region.columns} % ${region.rows}, c = column0 + place % ${region.columns};
      const int exists = place < ${region.places} && image < ${geometry.images} && channel < ${dst.channels} && y < ${dst.size[1]} && c < ${dst.size[2]};
      const INDEX at = exists ? (INDEX)image * ${dst.image} + (INDEX)y * ${dst.axes[1]} + (INDEX)c * ${dst.axes[2]} + channel : 0;
      copy16(memory, base, ${dy_at} + place * 80 + i % 4 * 16, dy + at, exists);
    }
    copies_commit();
    COPIES_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int turn = 0; turn < ${-(-runs // split)}; ++turn) {
      // A warp whose runs are over multiplies the first by zeros: all lanes of all warps stay together.
      const int run = turn * ${split} + side${f", real = run < {runs} ? run : 0" if runs % split else ", real = run"};
      uint b[2][4];
      LDMATRIX_TRANS(b[0], ${dy_at} + (real * 16 + lane % 16) * 80 + lane / 16 * 16);
      LDMATRIX_TRANS(b[1], ${dy_at} + (real * 16 + lane % 16) * 80 + lane / 16 * 16 + 32);
% if runs % split:
      if (run >= ${runs}) {
${unroll}
        for (int i = 0; i < 4; ++i) b[0][i] = b[1][i] = 0;
      }
% endif
      const uint from = table[real * 16 + turned] + line * ${geometry.spread[1] * region.width * 80} + across;
% for tap in range(kx):
% for half in range(2):
      {
        uint a[4];
        LDMATRIX_TRANS(a, from + ${tap * geometry.spread[2] * 80 + half * 32});
% for q, (k, n) in enumerate(pairs):
% if k == half:
        MMA(sum + ${tap * each + q * 4}, a, b[${n // 2}] + ${n % 2 * 2});
% endif
% endfor
      }
% endfor
% endfor
    }
  }
  partial += (long)part * ${tiling.size};
  local float *meet = (local float *)area;
% for tap in range(kx):
% for q, (half, n) in enumerate(pairs):
  barrier(CLK_LOCAL_MEM_FENCE);
${unroll}
  for (int i = 0; i < 4; ++i) meet[i * ${tiling.items} + tid] = sum[${tap * each + q * 4} + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int item = tid; item < ${128 * lines}; item += ${tiling.items}) {
    const int i = item / ${32 * lines}, of = item % ${32 * lines}, its = of / 32, g = of % 32 / 4, t = of % 4;
    float v = meet[i * ${tiling.items} + of];
    for (int other = 1; other < ${split}; ++other) v += meet[i * ${tiling.items} + other * ${32 * lines} + of];
    const int k = k0 + ${half * 16} + g + i / 2 * 8, n = n0 + ${n * 8} + t * 2 + i % 2;
    if (n < ${dst.channels} && k < ${src.channels} && n / ${geometry.m} == k / ${geometry.c})
      partial[((long)n * ${geometry.volume} + (its * ${kx} + ${tap})) * ${geometry.c} + k % ${geometry.c}] = v;
  }
% endfor
% endfor
}
