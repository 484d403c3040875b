// Looks over buffers where they are: reading them back would take longer than the convolution that filled them.
// ELEMENT: an unsigned type of an element's size; MARK: what each element holds that was not written.

// found += number of elements that still hold MARK.
kernel void unwritten(global const ELEMENT *a, long count, global uint *found) {
  uint mine = 0;
  for (long i = get_global_id(0); i < count; i += get_global_size(0))
    mine += a[i] == MARK;
  if (mine)
    atomic_add(found, mine);
}

// found += number of elements that differ.
kernel void differ(global const ELEMENT *a, global const ELEMENT *b, long count, global uint *found) {
  uint mine = 0;
  for (long i = get_global_id(0); i < count; i += get_global_size(0))
    mine += a[i] != b[i];
  if (mine)
    atomic_add(found, mine);
}

// picked[i] = a[at[i]]
kernel void gather(global const ELEMENT *a, global const long *at, global ELEMENT *picked) {
  picked[get_global_id(0)] = a[at[get_global_id(0)]];
}

// found[0], found[1] += two sums over all elements, mixed with their places.
kernel void checksum(global const ELEMENT *a, long count, global uint *found) {
  uint one = 0, two = 0;
  for (long i = get_global_id(0); i < count; i += get_global_size(0)) {
    const ulong element = a[i];
    uint mixed = (uint)(element ^ (element >> 32)) ^ ((uint)i * 0x9E3779B9u);
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6Bu;
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35u;
    one += mixed ^ (mixed >> 16);
    two += (mixed ^ (mixed >> 15)) * 0x27D4EB2Fu;
  }
  atomic_add(found, one);
  atomic_add(found + 1, two);
}
