## Warps multiply a slice in local memory: they read fragments into registers (with ``ldmatrix`` if the instruction's
## description has no fragments) and multiply them there. A part of ``product.cl.mako``.
<%def name="load_matrices(p, k)">\
% for i in range(frag_m):
% if form.data:
        LDMATRIX(fa[${p}][${i}], ${a_base} + ${p * a_plane + i * 16 * rowb} + a_row${f" + shift * {rowb}" if t.window else ""} + (((${k * 2} + lane / 16) ^ (${swizzled("lane + shift" if t.window else "lane")})) << 4));
% else:
        LDMATRIX_TRANS(fa[${p}][${i}], stage_at + ${p * a_bytes + k * 2048} + a_row + (a_chunk + ${i * 2}) / 8 * ${t.bk * 128} + (((a_chunk + ${i * 2}) % 8 ^ lane % 8) << 4));
% endif
% endfor
% for j in range(frag_n // 2):
% if form.data:
        LDMATRIX(fb[${p}][${j}], stage_at + ${b_const + p * b_bytes + j * 16 * rowb} + b_row + (((${k * 2} + lane / 8 % 2) ^ (${swizzled("lane")})) << 4));
% else:
        LDMATRIX_TRANS(fb[${p}][${j}], stage_at + ${planes * a_bytes + p * b_bytes + k * 2048} + b_row + (b_chunk + ${j * 2}) / 8 * ${t.bk * 128} + (((b_chunk + ${j * 2}) % 8 ^ lane % 8) << 4));
% endif
% endfor
</%def>
## Loads a lane's numbers by the instruction's description: runs along k are contiguous in a row of the slice; in a
## transposed slice each number is in another row.
<%def name="load_runs(to, fragment, at, line, k)">\
% for which, (far, deep) in enumerate(fragment.runs):
% if form.data:
        LOAD_RUN${fragment.run}(${to} + ${which * fragment.run}, ${at} + row_place(${line} + ${far}, ${k} + ${deep}));
% else:
% for e in range(fragment.run):
        LOAD_RUN1(${to} + ${which * fragment.run + e}, ${at} + column_place(${line} + ${far}, ${k} + ${deep + e}));
% endfor
% endif
% endfor
</%def>
<%def name="multiply()">\
<% together = core.step_n // core.n %>\
% for k in range(steps):
      {
% if core.a:
        ushort fa[${planes}][${frag_m}][${core.a.numbers}] __attribute__((aligned(32))), fb[${planes}][${frag_n}][${core.b.numbers}] __attribute__((aligned(32)));
% for p in range(planes):
% for i in range(frag_m):
${load_runs(f"fa[{p}][{i}]", core.a, f"{a_base} + {p * a_plane}", f"a_line + {i * core.m}{' + shift' if t.window else ''}", f"a_k + {k * core.k}")}\
% endfor
% for j in range(frag_n):
${load_runs(f"fb[{p}][{j}]", core.b, f"stage_at + {(b_const if form.data else planes * a_bytes) + p * b_bytes}", f"b_line + {j * core.n}", f"b_k + {k * core.k}")}\
% endfor
% endfor
% else:
        uint fa[${planes}][${frag_m}][4], fb[${planes}][${frag_n // 2}][4];
% for p in range(planes):
${load_matrices(p, k)}\
% endfor
% endif
% for i in range(frag_m):
% for j in range(frag_n):
<% at = (i * frag_n + j) * core.sums; b_at = f"[{j // together}]" + (f" + {j % together * 2}" if together > 1 else "") %>\
% if f.float32_accurate:
        {
          float part${core.sums}[${core.sums}] = {${", ".join(f"lost[{at + e}]" if t.compensated else "0" for e in range(core.sums))}};
% for pa, pb in f.products:
          MMA(part${core.sums}, fa[${pa}][${i}], fb[${pb}]${b_at});
% endfor
% for e in range(core.sums):
          ${f"lost[{at + e}] = add_part(sum + {at + e}, part{core.sums}[{e}])" if t.compensated else f"sum[{at + e}] += part{core.sums}[{e}]"};
% endfor
        }
% else:
% for pa, pb in f.products:
        MMA(sum + ${at}, fa[${pa}][${i}], fb[${pb}]${b_at});
% endfor
% endif
% endfor
% endfor
      }
% endfor
</%def>
