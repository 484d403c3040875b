// AS_V and AS_KEPT read the bits of a vector as V or as KEPT, so that lanes can be masked.
//
// V, KEPT  vector of sums; vector of integers of the same size
#define AS_(type) as_##type
#define AS(type) AS_(type)
#define AS_V AS(V)
#define AS_KEPT AS(KEPT)
