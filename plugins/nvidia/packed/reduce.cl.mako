## The sum of the parts, in their order, and what follows it. Weights go from [group][m][tap][8 c8] to their own order.
<%
p, geo = tiling.problem, tiling.geometry
icg, ocg = p.ic // p.g, p.oc // p.g
taps = p.kd * p.kh * p.kw
nhwc = p.layout == "nhwc"
size = 1
for extent in p.out_shape: size *= extent
inner = 1 if nhwc else size // (p.out_shape[0] * p.out_shape[1])
%>\
kernel void reduce(global const float *restrict partial, OUT_PARAMS) {
  const OUT_INDEX i = get_global_id(0);
  if (i >= ${size}) return;
  partial += ${partial_at}L;
% if tiling.data:
  const OUT_INDEX from = i;
  const int row = i / ${inner} % ${p.channels_out};
% else:
% if nhwc:
  const int c = i % ${icg}, tap = i / ${icg} % ${taps};
% else:
  const int c = i / ${taps} % ${icg}, tap = i % ${taps};
% endif
% if geo.fold:
  const int column = tap / ${p.kw} * ${geo.c8 * 8} + tap % ${p.kw} * ${icg} + c, row = 0;
% else:
  const int column = tap * ${geo.c8 * 8} + c, row = 0;
% endif
  const OUT_INDEX from = i / ${icg * taps} * (OUT_INDEX)${tiling.n} + column;
% endif
  float v = partial[from];
## Many loads in flight at once: small outputs have too few work items to wait for one after the other.
% if tiling.tile.split > 1:
#pragma unroll 16
  for (int part = 1; part < ${tiling.tile.split}; ++part) v += partial[from + (OUT_INDEX)part * ${tiling.partial_elements}];
% endif
  put(OUT_ARGS, v, i, row);
}
