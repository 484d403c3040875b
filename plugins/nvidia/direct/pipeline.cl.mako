## The asynchronous copies of one slice of both operands to local memory. A part of ``product.cl.mako``.
##
## slice  which slice: an expression
## stage  where in local memory: an expression, bytes
<%def name="fetch(slice, stage)">\
% for c in both:
<% o, l = c.operand, c.letter %>\
% for j in range(c.k_steps):
      {
        const int k = ${slice} * ${t.bk} + ${l}_k + ${j * c.k_step}, real = ${"k < K" if f.k_ragged else "1"};
        const INDEX at = ${o.k.at("k")};
% for i in range(c.rows):
        ${c.guard(i, j)}copy${4 * c.width}(memory, base, ${stage} + ${l}_to + ${c.to(i, j)}, ${l} + (${l}_at${i} + at), real${f" && {l}_in{i}" if o.ragged else ""});
% endfor
      }
% endfor
% endfor
</%def>
