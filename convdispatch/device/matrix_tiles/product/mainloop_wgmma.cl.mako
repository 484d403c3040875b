## Groups of four warps multiply a slice, which ``wgmma`` reads from local memory while other slices are copied. A part
## of ``product.cl.mako``.
##
## steps  steps of 16 numbers along k that one batch of instructions multiplies
<%def name="multiply(steps)">\
    WGMMA_BEGIN();
## The small products of all steps come first, to be added to sums that are small too; the large sum is rounded only once.
% for pa, pb in f.products:
% for k in steps:
<%
k_at = k * 32 if form.data else k * 2048
bk_at = k * 2048 if form.weights == "transposed" else k_at
add = "1" if (k, (pa, pb)) != (steps[0], f.products[0]) or compensated else "0" if drained else "add"
%>\
    WGMMA(${"fresh" if separate else "sum"}, ${a_base} + a_from + ${pa * a_plane + k_at}${f' + shift * {rowb}' if t.window else ''}, stage_at + b_from + ${pb * b_bytes + bk_at}, ${add});
% endfor
% endfor
    WGMMA_COMMIT();
</%def>
## If sums are kept in float32 registers, the tensor cores' sums are added to them.
<%def name="move_sums()">\
      wgmma_finish(fresh);
#pragma unroll
      for (int i = 0; i < ${sums}; ++i) ${"fresh[i] = add_part(sum + i, fresh[i])" if compensated else "sum[i] += fresh[i]"};
</%def>
