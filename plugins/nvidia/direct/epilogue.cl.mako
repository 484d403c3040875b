## Stores the sums to the output or the partial sums, through local memory, so that consecutive items write contiguously.
##
## width, run         neighbouring results that leave together, and their type
## across, down       work items along a row of the tile, and rows that all of them take at a time
## rows_at_once            rows whose residuals are read before one of them is written
## row, column        axes of the output
##
## A function of the program: ``width`` results, or zeros unless kept.
<%def name="functions()">\
// ${width} neighbouring results, or zeros unless kept. ``addend`` is what the residual holds there.
inline void put_run(OUT_PARAMS, local const float *from, int kept, ${run} addend, OUT_INDEX at, int channel) {
  ${run} v = kept ? (${run})(${", ".join(f"from[{i}]" for i in range(width))}) : (${run})(0);
#if PARTIAL
  out += PARTIAL_AT;
#else
  EPILOGUE(${run}, v, ${f"*(global const {run} *)(bias + channel)" if f.nhwc else "bias[channel]"}, addend, *(global const ${run} *)(out + at))
#endif
  *(global ${run} *)(out + at) = v;
}
#if RESIDUAL && !PARTIAL
#define ADDEND(at) (*(global const ${run} *)(residual + (at)))
#else
#define ADDEND(at) ((${run})(0))
#endif
</%def>
<%def name="put_pixels()">\
% if f.gaps:
      {
        // The pixel that an output reads, and those up to the next one, which none reads.
        const int place = ${"m" if f.nhwc else "n"}, image = DIVIDED(place, OUT_PIXELS);
        const int row = DIVIDED(place, OUT_W), plane = DIVIDED(row, OUT_H);
        const int z = (plane - image * OUT_D) * STRIDE_D, y = (row - plane * OUT_H) * STRIDE_H, x = (place - row * OUT_W) * STRIDE_W;
        const int dz = min(STRIDE_D, IN_D - z), dy = min(STRIDE_H, IN_H - y), dx = min(STRIDE_W, IN_W - x);
        for (int i = 0; i < dz; ++i)
          for (int j = 0; j < dy; ++j)
            for (int l = 0; l < dx; ++l) {
              const OUT_INDEX to = at + ((OUT_INDEX)(i * IN_H + j) * IN_W + l) * IN_STEP;
              put_run(OUT_ARGS, from, (i | j | l) == 0, ADDEND(to), to, channel);
            }
      }
% else:
      put_run(OUT_ARGS, from, 1, ADDEND(at), at, channel);
% endif
</%def>
<%def name="place()">\
      const int m = m0 + r, channel = group * GROUP_CHANNELS + ${"n" if f.nhwc else "m"};
      const OUT_INDEX at = at_n + ${row.at("m", "OUT_INDEX")};
</%def>
<%def name="write()">\
  barrier(CLK_LOCAL_MEM_FENCE);
${unroll}
  for (int i = 0; i < ${t.frag_m}; ++i)
${unroll}
    for (int j = 0; j < ${t.frag_n}; ++j) {
      local float *to = staging + (row0 + i * 16) * ${pitch_out} + column0 + j * 8 + lane % 4 * 2;
      const int at = (i * ${t.frag_n} + j) * 4;
      *(local float2 *)to = (float2)(sum[at], sum[at + 1]);
      *(local float2 *)(to + ${8 * pitch_out}) = (float2)(sum[at + 2], sum[at + 3]);
    }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int c = tid % ${across} * ${width}; c < ${t.bn} && n0 + c < N; c += ${across * width}) {
    const int n = n0 + c;
    const OUT_INDEX at_n = ${"(OUT_INDEX)part * PARTIAL_ELEMENTS + " if t.split > 1 else ""}(OUT_INDEX)group * OUT_GROUP + ${column.at("n", "OUT_INDEX")};
% if rows_at_once > 1:
    // Residuals of ${rows_at_once} rows are read before one of them is written: else each would wait for the one before.
    for (int first = tid / ${across}; first < ${t.bm}; first += ${rows_at_once * down}) {
      ${run} addend[${rows_at_once}];
${unroll}
      for (int u = 0; u < ${rows_at_once}; ++u) {
        const int r = min(first + u * ${down}, ${t.bm} - 1);
${place()}\
        addend[u] = ADDEND(m < M ? at : 0);
      }
${unroll}
      for (int u = 0; u < ${rows_at_once}; ++u) {
        const int r = first + u * ${down};
        if (r >= ${t.bm}) continue;
${place()}\
        if (m < M) put_run(OUT_ARGS, staging + r * ${pitch_out} + c, 1, addend[u], at, channel);
      }
    }
% else:
    for (int r = tid / ${across}; r < ${t.bm} && m0 + r < M; r += ${down}) {
${place()}\
      local const float *from = staging + r * ${pitch_out} + c;
${put_pixels()}\
    }
% endif
  }
</%def>
