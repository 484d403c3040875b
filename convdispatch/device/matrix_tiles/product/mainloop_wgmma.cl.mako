## A slice in local memory, multiplied by groups of four warps (``wgmma``), which read it themselves while others are
## copied. A part of ``product.cl.mako``.
##
## steps  steps of 16 numbers along k that one batch of instructions multiplies
<%def name="multiply(steps)">\
    WGMMA_BEGIN();
## Small products of all steps of 16 first: they meet sums as small as they are, and a large sum is cut once in 16 of k.
% for pa, pb in f.products:
% for k in steps:
<%
k_at = k * 32 if data else k * 2048
bk_at = k * 2048 if tiling.transposed_weights else k_at
add = "1" if (k, (pa, pb)) != (steps[0], f.products[0]) or compensated else "0" if drained else "add"
%>\
    WGMMA(${"fresh" if separate else "sum"}, ${a_base} + a_from + ${pa * a_plane + k_at}${f' + shift * {rowb}' if t.window else ''}, stage_at + b_from + ${pb * b_bytes + bk_at}, ${add});
% endfor
% endfor
    WGMMA_COMMIT();
</%def>
## Where float32 registers hold the sums, the tensor cores' own are moved there.
<%def name="move_sums()">\
      wgmma_finish(fresh);
#pragma unroll
      for (int i = 0; i < ${sums}; ++i) ${"fresh[i] = add_part(sum + i, fresh[i])" if compensated else "sum[i] += fresh[i]"};
</%def>
