## y[m, n] = finished(sum over k of A[m, k] B[n, k] - x_zero sum over k of B[n, k]), as ``stream.cl.mako`` has it, of kernels whose
## taps lie in each other's rows: what a tile needs of x is copied once, not once a tap.
##
## A tile is some rows of y, and the rows of x that they need lie one behind the other in local memory, ``pitch`` pixels each.
## Place m of the tile is row m / pitch, column m % pitch, so that tap (kh, kw) of all places begins kh dh pitch + kw dw rows of
## the matrix later: tensor cores take A from any row on, as a swizzle goes by addresses. The last places of a row are none.
##
## One warp copies boxes of x, one weights of tap after tap, and the others multiply.
<%namespace name="results" file="results.cl.mako"/>\
<%
t, p = tiling.tile, tiling.problem
warps, stage_bytes, stages, cluster, sources, together = t.wm * 4, tiling.stage_bytes, t.stages, t.cluster, tiling.sources, tiling.together
source_bytes = tiling.source_bytes
%>\
