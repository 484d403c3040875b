## Where the work items' copies of an operand begin: each has a position in a tile (``_row``, ``_k``), its address in
## local memory (``_to``, bytes) and, for each of its rows, in the tensor (``_at``). Parts of ``product.cl.mako``.
##
## c  a ``Copies``
<%def name="places(c)">\
<% o, l, capital = c.operand, c.letter, c.letter.upper() %>\
% if o.along_k:
  const int ${l}_k = tid % ${c.across} * ${c.width}, ${l}_row = tid / ${c.across};
  const uint ${l}_to = (${l}_row * ${c.pitch} + ${l}_k) * 4;
% else:
  const int ${l}_row = tid % ${c.across} * ${c.width}, ${l}_k = tid / ${c.across};
  const uint ${l}_to = (${l}_k * ${c.pitch} + ${l}_row) * 4;
% endif
  ${l} += (INDEX)group * ${capital}_GROUP;
% for i in range(c.rows):
  const int ${l}_place${i} = min(${c.origin} + ${l}_row + ${i * c.row_step}, ${o.row.name}_SIZE - ${1 if o.along_k else c.width});
  const INDEX ${l}_at${i} = ${o.row.at(f"{l}_place{i}")};
% if o.ragged:
  const int ${l}_in${i} = ${c.origin} + ${l}_row + ${i * c.row_step} < ${o.row.name}_SIZE;
% endif
% endfor
</%def>
