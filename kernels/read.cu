// Kernels that only read: the ceiling that products are measured against.
//
// A product that reads each weight byte once cannot be faster than the fastest way to read those bytes, launch and tail
// included, and at 5 to 75 MB which way that is depends on the size: how many bytes are in flight, how evenly CTAs end,
// how long the first load takes. So there are several ways, and the bench keeps the fastest for each size:
//   stream<U>     a CTA's range, U 16-byte loads a thread in flight: the plainest loop
//   ring<S>       a warp's range through cp.async stages of 1 KB, S - 1 of them in flight; holds no registers
//   registers<P>  a warp's range, P pieces of 1 KB in flight in registers
//   bulk          a CTA's range by bulk copies of 16 KB into a ring of shared memory (sm_90 and up)
// All read `pieces` of 1024 bytes. What is read goes into an exclusive or that is stored only if it has one certain
// value, so that nothing is optimized away and nearly nothing is written. With programmatic dependent launch the next
// kernel may start at once, and this one ends after the one before.
#include "nvfp4.cuh"

static constexpr u32 PIECE = 1024;

DEVICE u32 fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }
DEVICE void finish(u32 seen, u32* out) {
  wait_for_previous();
  if (seen == 0x9E3779B9u) *out = seen;
}

// Pieces [first, last) of part `index` of `parts`.
struct Range {
  u32 first, last;
  __device__ __forceinline__ Range(u32 pieces, u32 index, u32 parts)
      : first((u32)((u64)pieces * index / parts)), last((u32)((u64)pieces * (index + 1) / parts)) {}
};

template <int U> DEVICE void stream(const u8* source, u32 pieces, u32* out) {
  let_next_launch();
  Range mine(pieces, blockIdx.x, gridDim.x);
  const u8* at = source + (u64)mine.first * PIECE + threadIdx.x * 16;
  const u8* end = source + (u64)mine.last * PIECE;
  const u32 step = blockDim.x * 16;
  u32 seen = 0;
  for (; at + (U - 1) * step < end; at += U * step) {
    uint4 v[U];
#pragma unroll
    for (int i = 0; i < U; i++) v[i] = load_weights16(at + i * step);
#pragma unroll
    for (int i = 0; i < U; i++) seen ^= fold(v[i]);
  }
  for (; at < end; at += step) seen ^= fold(load_weights16(at));
  finish(seen, out);
}

DEVICE uint4 load_shared16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
DEVICE void copy_piece(u32 to, const u8* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 512), "l"(from + 512));
}

template <int S> DEVICE void ring(const u8* source, u32 pieces, u32* out) {
  extern __shared__ __align__(128) u8 memory[];
  let_next_launch();
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  Range mine(pieces, blockIdx.x * warps + warp, gridDim.x * warps);
  const int count = (int)(mine.last - mine.first);
  const u8* from = source + (u64)mine.first * PIECE + lane * 16;
  const u32 slots = shared_address(memory) + warp * S * PIECE + lane * 16;
  u32 seen = 0;
#pragma unroll
  for (int s = 0; s < S - 1; s++) {
    if (s < count) copy_piece(slots + s * PIECE, from + s * PIECE);
    asm volatile("cp.async.commit_group;");
  }
  // Each lane reads back what it copied itself, so no barrier is needed.
  int slot = 0;
  for (int c = 0; c < count; c++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(S - 2) : "memory");
    seen ^= fold(load_shared16(slots + slot * PIECE)) ^ fold(load_shared16(slots + slot * PIECE + 512));
    const int next = slot == 0 ? S - 1 : slot - 1;
    if (c + S - 1 < count) copy_piece(slots + next * PIECE, from + (u64)(S - 1) * PIECE);
    asm volatile("cp.async.commit_group;");
    from += PIECE;
    slot = slot == S - 1 ? 0 : slot + 1;
  }
  finish(seen, out);
}

template <int P> DEVICE void registers(const u8* source, u32 pieces, u32* out) {
  let_next_launch();
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  Range mine(pieces, blockIdx.x * warps + warp, gridDim.x * warps);
  const int count = (int)(mine.last - mine.first);
  const u8* from = source + (u64)mine.first * PIECE + lane * 16;
  uint4 low[P], high[P];
  u32 seen = 0;
#pragma unroll
  for (int i = 0; i < P; i++)
    if (i < count) {
      low[i] = load_weights16(from + i * PIECE);
      high[i] = load_weights16(from + i * PIECE + 512);
    }
  for (int c = 0; c < count; c += P)
#pragma unroll
    for (int i = 0; i < P; i++)
      if (c + i < count) {
        seen ^= fold(low[i]) ^ fold(high[i]);
        if (c + i + P < count) {
          low[i] = load_weights16(from + P * PIECE);
          high[i] = load_weights16(from + P * PIECE + 512);
        }
        from += PIECE;
      }
  finish(seen, out);
}

#define READ(name, body, most)                                                                            \
  extern "C" __global__ void __launch_bounds__(most) name(const u8* source, u32* out, u32 pieces) { \
    body(source, pieces, out);                                                                            \
  }
READ(read_stream4, stream<4>, 512)
READ(read_stream8, stream<8>, 512)
READ(read_ring4, ring<4>, 512)
READ(read_ring6, ring<6>, 512)
READ(read_ring8, ring<8>, 512)
READ(read_ring12, ring<12>, 512)
READ(read_registers2, registers<2>, 512)
READ(read_registers3, registers<3>, 512)
READ(read_registers4, registers<4>, 512)
READ(read_registers6, registers<6>, 512)

#if HAS_CLUSTER
static constexpr int STAGES = 12;
static constexpr u32 PIECES = 16;  // a bulk copy

DEVICE void request(u32 to, const u8* from, u32 bytes, u32 barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void await(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
      ::"r"(barrier), "r"(parity) : "memory");
}

extern "C" __global__ void __launch_bounds__(128) read_bulk(const u8* source, u32* out, u32 pieces) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ __align__(8) u64 full[STAGES];
  let_next_launch();
  Range mine(pieces, blockIdx.x, gridDim.x);
  const u32 left = mine.last - mine.first;
  const int count = (int)((left + PIECES - 1) / PIECES);
  const u8* from = source + (u64)mine.first * PIECE;
  const u32 slots = shared_address(memory);
  auto bytes_of = [&](int c) { return min(PIECES, left - (u32)c * PIECES) * PIECE; };
  auto slot_of = [&](int c) { return slots + (u32)(c % STAGES) * PIECES * PIECE; };
  auto issue = [&](int c) {
    request(slot_of(c), from + (u64)c * PIECES * PIECE, bytes_of(c), shared_address(&full[c % STAGES]));
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&full[s])));
    asm volatile("fence.mbarrier_init.release.cluster;");
    for (int c = 0; c < STAGES && c < count; c++) issue(c);
  }
  __syncthreads();
  u32 seen = 0;
  for (int c = 0; c < count; c++) {
    await(shared_address(&full[c % STAGES]), (u32)(c / STAGES) & 1);
    for (u32 at = threadIdx.x * 16; at < bytes_of(c); at += 128 * 16) seen ^= fold(load_shared16(slot_of(c) + at));
    __syncthreads();
    if (threadIdx.x == 0 && c + STAGES < count) issue(c + STAGES);
  }
  finish(seen, out);
}
#endif
