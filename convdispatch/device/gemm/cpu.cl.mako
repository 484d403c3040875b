## C[m, n] = sum over k of A[m, k] B[k, n] in registers: a work item walks register tiles of MR rows by NV vectors.
//
// LANES  elements of a vector V: 16 floats for AVX-512, 8 for AVX2, half as many doubles
// MR     rows of a register tile and of a panel of A
// NV     vectors of a register tile; B's panels are NV * LANES columns wide
// KU     independent sums over k in a tile, so that few accumulators still hide the latency of an addition
// KC     length along k of one pass over the rows: KC * NV * LANES elements of B stay in the second-level cache
// KS     length along k of one part when the sum is split (a multiple of KC unless SPLIT is 1)
// MT     register tiles of one column panel that a work item computes
// NP     column panels of a work item
// BT     batches of a work item
// a_local  A's elements are narrower than sums: a tile widens its rows into local memory, in their order
// far_rows     A is larger than the second-level cache and its rows are contiguous: a tile prefetches the next tile's rows
// far_steps    A is larger than the second-level cache and its columns are cache lines apart: prefetched 32 steps ahead
// far_columns  B is larger than the second-level cache: a tile prefetches a cache line of every row of the next panel
// far_a, far_b  the packed operand is larger than the second-level cache: its cache lines are prefetched
// fetched  cache lines of B's next panel that each step of k prefetches from memory while this panel is multiplied
// b_local  the work item packs KC rows of a panel of B into local memory itself; work groups have one work item
<%
nr = nv * lanes
tail_m, tail_n = m % mr, n % nr
full_m, full_n = m // mr, n // nr
padded = b_packed or b_local  # else B is read in place and has no lanes beyond its edge
%>
<%def name="tile(rows, columns)"><%
whole, rest = columns // lanes, columns % lanes
vectors = whole + (rest > 0)
# A direct B has no padding: the last vector ends at the matrix' edge and overlaps the one before it.
start = [j * lanes - (lanes - rest if not padded and j == whole else 0) for j in range(vectors)]
steps = range(ku)
%>\
    {  // ${rows} x ${columns}
% for u, i in pairs(steps, range(rows)):
      V ${", ".join(f"c{u}_{i}_{j} = 0" for j in range(vectors))};
% endfor
% if a_local:
% for i in range(rows):
      {
        global const REAL *from = a + A_ROW(tile * MR + ${i}) + k0;
        local ACC *to = near + ${i} * KC;
        int k = 0;
        __attribute__((opencl_unroll_hint(1)))
        for (; k + LANES <= kb; k += LANES) STOREL(to + k, LOADV(from + k));
        for (; k < kb; ++k) to[k] = LOAD(from, k);
      }
      local const ACC *restrict pa${i} = near + ${i} * KC;
% endfor
% elif a_packed:
      global const ACC *restrict pa = a + (long)tile * ((long)K * MR) + (long)k0 * MR;
% else:
% for i in range(rows):
      global const ACC *restrict pa${i} = a + A_ROW(tile * MR + ${i}) + A_COL(k0);
% endfor
% endif
% if b_local:
      local const ACC *restrict pb = block;
% elif b_packed:
      global const ACC *restrict pb = b + (long)panel * ((long)K * ${nr}) + (long)k0 * ${nr};
% else:
      global const ACC *restrict pb = b + B_COL(panel * ${nr}) + B_ROW(k0);
% endif
% if fetched:
      // The first tiles of a panel prefetch the next panel; later tiles prefetch lines that are cached already.
      global const ACC *restrict next = pb + (tile - tile0 < ${-(-nr // (fetched * line))} ? ${k * nr} + (tile - tile0) * kb * ${fetched * line} : 0);
% endif
% if far_columns:
      global const ACC *ahead = next + min(tile - tile0, ${-(-nr // far_columns) - 1}) * ${far_columns};
% endif
      int k = 0;
% if far_rows:
      while (k < kb) {
        const int stop = min(k + ${far_rows}, kb);  // the end of a cache line of each row
% for i in range(rows):
        AHEAD(pa${i} + A_ROW(MR));
% endfor
        __attribute__((opencl_unroll_hint(1)))
% endif
% for width in ([ku, 1] if ku > 1 else [1]):
      for (; k + ${width} <= ${"stop" if far_rows else "kb"}; k += ${width}) {
% if far_columns:
% for u in range(width):
        AHEAD(ahead + B_ROW(${u}));
% endfor
        ahead += B_ROW(${width});
% endif
% if far_b:
% for u, j in pairs(range(width), range(0, vectors, max(1, 16 // lanes))):
        AHEAD(pb + ${(16 + u) * b_step + start[j]});
% endfor
% elif far_a:
        AHEAD(pa + ${64 * mr});
% endif
% if fetched:
% for i in range(fetched * width):
        NEXT(next + ${i * line});
% endfor
        next += ${fetched * width * line};
% endif
% if far_steps:
        AHEAD(pa0 + ${32 * a_step});
% endif
% for u in range(width):
% for j in range(vectors):
        const V b${u}_${j} = ${'LOADL' if b_local else 'LOADW'}(pb + ${u * b_step + start[j]});
% endfor
% for i in range(rows):
        const ACC a${u}_${i} = ${f"pa[{u * mr + i}]" if a_packed else f"pa{i}[{u * a_step}]"};
% for j in range(vectors):
        c${u}_${i}_${j} = a${u}_${i} * b${u}_${j} + c${u}_${i}_${j};
% endfor
% endfor
% endfor
        pb += ${width * b_step};
% if a_packed:
        pa += ${width * mr};
% else:
        ${" ".join(f"pa{i} += {width * a_step};" for i in range(rows))}
% endif
      }
% endfor
% if far_rows:
      }
% endif
% for i, j in pairs(range(rows), range(vectors)):
<% total = " + ".join(f"c{u}_{i}_{j}" for u in steps) %>\
% if j < whole:
      put_vector(OUT_ARGS, ${total}, tile * MR + ${i}, panel * ${nr} + ${start[j]}, flags);
% else:
<% first = 0 if padded else lanes - rest %>\
% if tail:
      put_tail(OUT_ARGS, ${total}, tile * MR + ${i}, panel * ${nr} + ${start[j]}, flags);
% else:
      put_lanes(OUT_ARGS, ${total}, tile * MR + ${i}, panel * ${nr} + ${start[j]}, ${first}, ${first + rest}, flags);
% endif
% endif
% endfor
    }
</%def>
<%def name="scalars(columns)">\
% if b_k_unit:
          for (int k = 0; k < kb; k += LANES)  // runs along k are short, so that the scattered writes stay in the cache
            for (int lane = 0; lane < ${columns}; ++lane) {
              global const REAL *from = b + B_COL(panel * ${nr} + lane) + B_ROW(k0 + k);
              if (k + LANES <= kb) {
                union { V v; ACC s[LANES]; } u;
                u.v = LOADV(from);
                for (int q = 0; q < LANES; ++q) block[(k + q) * ${nr} + lane] = u.s[q];
              } else for (int q = 0; q < kb - k; ++q) block[(k + q) * ${nr} + lane] = LOAD(from, q);
            }
% else:
          for (int lane = 0; lane < ${columns}; ++lane) {
            global const REAL *from = b + B_COL(panel * ${nr} + lane);
            for (int k = 0; k < kb; ++k) block[k * ${nr} + lane] = LOAD(from, B_ROW(k0 + k));
          }
% endif
</%def>
<%def name="fill(columns)"><% whole, rest = columns // lanes, columns % lanes %>\
        // Computes block[k, lane] = B[k0 + k, column lane of the panel].
% if rest:
        for (int k = 0; k < kb; ++k)
          STOREL(block + k * ${nr} + ${whole * lanes}, (V)(0));
% endif
% if b_run and whole:
% if b_run < n:
        if (panel * ${nr} % ${b_run} + ${columns} <= ${b_run}) {
% else:
        {
% endif
          global const REAL *from = b + B_COL(panel * ${nr});
          for (int k = 0; k < kb; ++k) {
            const long row = B_ROW(k0 + k);
% for v in range(whole):
            STOREL(block + k * ${nr} + ${v * lanes}, LOADV(from + row + ${v * lanes}));
% endfor
% for lane in range(whole * lanes, columns):
            block[k * ${nr} + ${lane}] = LOAD(from, row + ${lane});
% endfor
          }
        }
% if b_run < n:
        else {
${scalars(columns)}\
        }
% endif
% else:
        {
${scalars(columns)}\
        }
% endif
</%def>
<%def name="rows(columns)">\
% if b_local:
${fill(columns)}\
% endif
% if full_m:
        for (; tile < min(tile1, ${full_m}); ++tile)
${tile(mr, columns)}\
% endif
% if tail_m:
        if (tile < tile1)
${tile(tail_m, columns)}\
% endif
</%def>
% if far_a or far_b or far_rows or far_columns or far_steps:
// OpenCL's prefetch() is not used, because in Intel's runtime it is a library call, and products took three times as long.
#define AHEAD(p) __builtin_prefetch((const void *)(size_t)(p))
#define NEXT(p) __builtin_prefetch((const void *)(size_t)(p), 0, 2)
% endif
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
void gemm(global const ${'REAL' if a_local else 'ACC'} *restrict a_, long a_off, global const ${'REAL' if b_local else 'ACC'} *restrict b_, long b_off, OUT_KERNEL_PARAMS) {
% if a_local:
  local ACC near[MR * KC] __attribute__((aligned(64)));
% endif
% if b_local:
  local ACC block[KC * ${nr}] __attribute__((aligned(64)));
% endif
  const int panel0 = get_global_id(0) * NP, panel1 = min(panel0 + NP, ${-(-n // nr)});
  const int tile0 = get_global_id(1) * MT, tile1 = min(tile0 + MT, ${-(-m // mr)});
  const int part = get_global_id(2) % SPLIT, z0 = get_global_id(2) / SPLIT * BT, z1 = min(z0 + BT, BATCH);
  const int begin = part * KS, end = min(begin + KS, K);
  for (int z = z0; z < z1; ++z) {
    OUT_POINTERS(z, part)
    global const ${'REAL' if a_local else 'ACC'} *a = a_ + a_off + ${f"A_PACKED(z) * {-(-m // mr) * mr * k}L" if a_packed else "A_BATCH(z)"};
    global const ${'REAL' if b_local else 'ACC'} *b = b_ + b_off + ${f"B_PACKED(z) * {-(-n // nr) * nr * k}L" if b_packed else "B_BATCH(z)"};
    for (int k0 = begin; k0 < end; k0 += KC) {
      const int kb = min(KC, end - k0);
      const int flags = (k0 > begin ? ADD : FLAGS) | (k0 + KC >= end ? LAST : 0);
      for (int panel = panel0; panel < panel1; ++panel) {
        int tile = tile0;
% if far_columns:
        // The next panel: this work item's, another work item's first one, or the first one of the next pass over k.
        const int last = panel + 1 == panel1 && KC < KS;
        global const ACC *next = b + B_COL((last ? panel0 : panel + 1) * ${nr}) + B_ROW(last ? k0 + KC : k0);
% endif
% if full_n and tail_n:
        if (panel < ${full_n}) {
${rows(nr)}\
        } else {
${rows(tail_n)}\
        }
% elif full_n:
${rows(nr)}\
% else:
${rows(tail_n)}\
% endif
      }
    }
  }
}
<%! from itertools import product as pairs %>
