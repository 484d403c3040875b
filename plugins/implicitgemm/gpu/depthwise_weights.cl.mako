## dw[m, tap] = sum over pixels of dy[m, pixel] x[pixel * step + origin + tap * spread] for groups of one input channel.
##
## a work group sums one chunk of pixels for some groups of channels: each item all taps at every so many pixels,
## then the items' sums are added in local memory in a fixed order. Chunks are added by ``reduce``.
##
## lanes   neighbouring items that belong to neighbouring groups (NHWC); 1: neighbours are pixels
## chunk   pixels of a chunk
<%
geo = p.geometry
src, dst, steps = geo.source, geo.target, geo.source.axes
names = "zyx"
size = dst.size
kz, ky, kx = geo.kernel
taps = [(z, y, x) for z in range(kz) for y in range(ky) for x in range(kx)]
origin = geo.phases[0].origin
lanes, chunk, items = p.lanes, p.chunk, p.items
%>\
#define INDEX ${p.index}
kernel __attribute__((reqd_work_group_size(${items}, 1, 1)))
void sums(global const REAL *restrict dy, global const REAL *restrict x, OUT_PARAMS) {
  local ACC shared[${items}];
  const int tid = get_local_id(0), side = tid / ${lanes};
  const int group = get_group_id(0) * ${lanes} + tid % ${lanes}, part = get_group_id(1);
  const int from = part * ${chunk}, to = min(from + ${chunk}, ${p.places});
% for m in range(geo.m):
  ACC ${", ".join(f"c{m}_{t} = 0" for t in range(len(taps)))};
% endfor
  for (int i = from + side; i < to${f" && group < {geo.groups}" if geo.groups % lanes else ""}; i += ${items // lanes}) {
    const int image = i / ${dst.pixels}, pixel = i % ${dst.pixels};
    const int iz = pixel / ${size[1] * size[2]} * ${geo.step[0]} + (${origin[0]});
    const int iy = pixel / ${size[2]} % ${size[1]} * ${geo.step[1]} + (${origin[1]});
    const int ix = pixel % ${size[2]} * ${geo.step[2]} + (${origin[2]});
    global const REAL *d = dy + ((INDEX)image * ${dst.image} + (INDEX)pixel * ${dst.axes[2]} + (INDEX)group * ${geo.m * dst.channel});
    global const REAL *s = x + ((INDEX)image * ${src.image} + (INDEX)group * ${src.channel}
        + (INDEX)iz * ${steps[0]} + (INDEX)iy * ${steps[1]} + (INDEX)ix * ${steps[2]});
% for m in range(geo.m):
    const ACC d${m} = LOAD(d, ${m * dst.channel});
% endfor
% for t, tap in enumerate(taps):
<%
at = [k * d for k, d in zip(tap, geo.spread)]
tests = [f"(uint)(i{names[a]} + {at[a]}) < {src.size[a]}" for a in range(3) if not geo.inside(a)]
load = f"LOAD(s, {sum(o * k for o, k in zip(at, steps))})"
%>\
    {
      const ACC v = ${f"{' && '.join(tests)} ? {load} : (ACC)0" if tests else load};
% for m in range(geo.m):
      c${m}_${t} = d${m} * v + c${m}_${t};
% endfor
    }
% endfor
  }
% for m in range(geo.m):
% for t in range(len(taps)):
  shared[tid] = c${m}_${t};
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = ${items // lanes // 2}; reach > 0; reach /= 2) {
    if (side < reach) shared[tid] += shared[tid + reach * ${lanes}];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (side == 0 && group < ${geo.groups}) put(OUT_ARGS, shared[tid], (OUT_INDEX)part * ${p.out_size} + (group * ${geo.m} + ${m}) * ${len(taps)} + ${t}, 0);
  barrier(CLK_LOCAL_MEM_FENCE);
% endfor
% endfor
}
