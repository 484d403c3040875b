// Counts, means and sums of squared distances from the mean, merged by the formula of Chan, Golub and LeVeque (1979).
//
// A block holds a few values, summed about its first one: a mean far from zero costs no digits, and where the first value
// is far from the others, its own square bounds what is lost to a factor of the block's length.
#ifndef MOMENTS
#define MOMENTS 1
typedef struct { ACC count, mean, squares; } moments;
typedef struct { ACC origin, sum, squares; } block_sums;

inline moments merged(moments a, moments b) {
  const ACC count = a.count + b.count, share = count > 0 ? b.count / count : 0, delta = b.mean - a.mean;
  const moments both = {count, a.mean + delta * share, a.squares + b.squares + delta * (delta * (a.count * share))};
  return both;
}
inline void add_to_block(block_sums *b, ACC v, int is_first) {
  if (is_first) b->origin = v;
  const ACC d = v - b->origin;
  b->sum += d;
  b->squares = fma(d, d, b->squares);
}
inline moments moments_of_block(block_sums b, ACC count) {
  const ACC mean = count > 0 ? b.sum / count : 0;
  const moments result = {count, b.origin + mean, fmax(b.squares - b.sum * mean, (ACC)0)};
  return result;
}
#endif
