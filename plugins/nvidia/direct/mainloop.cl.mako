## A slice in local memory: fragments of both operands become TF32 or bfloat16 in registers, tensor cores multiply them.
<%namespace name="accumulation" file="accumulation.cl.mako"/>\
## Element e of a fragment: the value, or two whose sum it is; in bfloat16 a register holds two values, k's 4 apart.
##
## x     "a" or "b"
## row   of the tile, step of 8 numbers (bfloat16) or 4 along k: expressions
## to    the fragment's element
<%def name="element(x, row, step, to)">\
% if t.depth == 16:
          const int r = ${row}, at = k + lane % 4 + ${step} * 8;
          split2(${x}_tile[${x.upper()}_TILE(r, at)], ${x}_tile[${x.upper()}_TILE(r, at + 4)], &${x}_high${to}, &${x}_low${to});
% else:
          const float v = ${x}_tile[${x.upper()}_TILE(${row}, k + lane % 4 + ${step} * 4)];
% if exact:
          split(v, &${x}_high${to}, &${x}_low${to});
% else:
          ${x}_high${to} = cvt_tf32_f32(v);
% endif
% endif
</%def>
<%def name="multiply()">\
${unroll}
    for (int k = 0; k < ${t.bk}; k += ${t.depth}) {
      uint b_high[${t.frag_n}][2]${f", b_low[{t.frag_n}][2]" if exact else ""};
${unroll}
      for (int j = 0; j < ${t.frag_n}; ++j)
${unroll}
        for (int e = 0; e < 2; ++e) {
${element("b", "column0 + j * 8 + lane / 4", "e", "[j][e]")}\
        }
${unroll}
      for (int i = 0; i < ${t.frag_m}; ++i) {
        uint a_high[4]${", a_low[4]" if exact else ""};
${unroll}
        for (int e = 0; e < 4; ++e) {
${element("a", "row0 + i * 16 + e % 2 * 8", "e / 2", "[e]")}\
        }
${accumulation.products()}\
      }
    }
</%def>
