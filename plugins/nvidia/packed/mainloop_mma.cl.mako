## A slice in local memory, multiplied by warps (``mma``): fragments are read with ``ldmatrix`` and multiplied from
## registers. A part of ``product.cl.mako``.
<%def name="multiply()">\
% for k in range(t.bk // 16):
      {
        uint fa[${planes}][${frag_m}][4], fb[${planes}][${frag_n // 2}][4];
% for p in range(planes):
% for i in range(frag_m):
% if data:
        LDMATRIX(fa[${p}][${i}], ${a_base} + ${p * a_plane + i * 16 * rowb} + a_row${f" + shift * {rowb}" if t.window else ""} + (((${k * 2} + lane / 16) ^ (${swizzled("lane + shift" if t.window else "lane")})) << 4));
% else:
        LDMATRIX_TRANS(fa[${p}][${i}], stage_at + ${p * a_bytes + k * 2048} + a_row + (a_chunk + ${i * 2}) / 8 * ${t.bk * 128} + (((a_chunk + ${i * 2}) % 8 ^ lane % 8) << 4));
% endif
% endfor
% for j in range(frag_n // 2):
% if data:
        LDMATRIX(fb[${p}][${j}], stage_at + ${b_const + p * b_bytes + j * 16 * rowb} + b_row + (((${k * 2} + lane / 8 % 2) ^ (${swizzled("lane")})) << 4));
% else:
        LDMATRIX_TRANS(fb[${p}][${j}], stage_at + ${planes * a_bytes + p * b_bytes + k * 2048} + b_row + (b_chunk + ${j * 2}) / 8 * ${t.bk * 128} + (((b_chunk + ${j * 2}) % 8 ^ lane % 8) << 4));
% endif
% endfor
% endfor
% for i in range(frag_m):
% for j in range(frag_n):
<% at = (i * frag_n + j) * 4 %>\
% if f.float32_accurate:
        {
          float part4[4] = {${", ".join(f"lost[{at + e}]" if t.compensated else "0" for e in range(4))}};
% for pa, pb in f.products:
          MMA(part4, fa[${pa}][${i}], fb[${pb}][${j // 2}] + ${j % 2 * 2});
% endfor
% for e in range(4):
          ${f"lost[{at + e}] = add_part(sum + {at + e}, part4[{e}])" if t.compensated else f"sum[{at + e}] += part4[{e}]"};
% endfor
        }
% else:
% for pa, pb in f.products:
        MMA(sum + ${at}, fa[${pa}][${i}], fb[${pb}][${j // 2}] + ${j % 2 * 2});
% endfor
% endif
% endfor
% endfor
      }
% endfor
</%def>
