## How products of tensor cores become float32 sums, which round better than those of the tensor cores themselves. Parts
## of ``product.cl.mako``, one scheme of three:
##
## one number a value       products add to ``sum``
## ``separate``               products of ``flush_every`` slices add to ``fresh``, which is then moved to ``sum``
## else                     products of one step of k begin at 0 and are added to ``sum``
##
## ``compensated``: what such an addition rounds away begins the next products.
<%def name="declare()">\
  float sum[${sums}]${f", fresh[{sums}]" if separate else f", carried[{sums}]" if t.compensated else ""};
${unroll}
  for (int i = 0; i < ${sums}; ++i) sum[i] = 0;
% if separate:
${unroll}
  for (int i = 0; i < ${sums}; ++i) fresh[i] = 0;
  int left = ${t.flush_every};
% elif t.compensated:
${unroll}
  for (int i = 0; i < ${sums}; ++i) carried[i] = 0;
% endif
</%def>
## Products of row fragment i with every column fragment.
<%def name="products()">\
% if exact:
        // Consecutive products are independent, so they do not wait for each other.
% if not separate:
        float step[${t.frag_n * 4}];
${unroll}
        for (int j = 0; j < ${t.frag_n * 4}; ++j) step[j] = ${f"carried[i * {t.frag_n * 4} + j]" if t.compensated else 0};
% endif
<% into = f"fresh + i * {t.frag_n * 4}" if separate else "step" %>\
% for left, right in (("a_low", "b_high"), ("a_high", "b_low"), ("a_high", "b_high")):
${unroll}
        for (int j = 0; j < ${t.frag_n}; ++j) MMA(${into} + j * 4, ${left}, ${right}[j]);
% endfor
% if not separate:
${unroll}
% if t.compensated:
        for (int j = 0; j < ${t.frag_n * 4}; ++j) carried[i * ${t.frag_n * 4} + j] = add_part(sum + i * ${t.frag_n * 4} + j, step[j]);
% else:
        for (int j = 0; j < ${t.frag_n * 4}; ++j) sum[i * ${t.frag_n * 4} + j] += step[j];
% endif
% endif
% else:
${unroll}
        for (int j = 0; j < ${t.frag_n}; ++j) MMA(sum + (i * ${t.frag_n} + j) * 4, a_high, b_high[j]);
% endif
</%def>
## This runs at the end of a slice.
<%def name="flush()">\
% if separate:
    if (--left == 0) {
      left = ${t.flush_every};
${unroll}
      for (int i = 0; i < ${sums}; ++i) {
% if t.compensated:
        fresh[i] = add_part(sum + i, fresh[i]);
% else:
        sum[i] += fresh[i];
        fresh[i] = 0;
% endif
      }
    }
% endif
</%def>
## This runs after the last slice.
<%def name="finish()">\
% if separate:
${unroll}
  for (int i = 0; i < ${sums}; ++i) sum[i] += fresh[i];
% endif
</%def>
