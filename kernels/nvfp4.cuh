// NVFP4 on the device: the format, and the few instructions that have no C++ name.
//
// Shared by every kernel of this folder. Nothing is included: the NVRTC wheels carry no cuda_fp16.h and no
// cuda_fp4.h, so 16-bit numbers travel as bits in u16/u32 and every special instruction is inline PTX here, once.
// Fall-backs for older architectures sit beside the instruction that they replace, so kernels stay free of guards.
//
// The format: a weight or activation is e2m1(code) * e4m3(scale of its block of 16 along K) * one global float.
// A byte holds two codes, even k in the low nibble. A code is s ee m: 0 .5 1 1.5 2 3 4 6, bit 3 the sign.
//
// Exactness that kernels lean on:
//   2 * e2m1 is an integer in [-12, 12]; a block's sum of 16 products of those fits 12 bits;
//   e2m1 * e4m3 has at most 6 significant bits, is a multiple of 2^-10 and at most 2688: exact in fp16 and bf16,
//   also when multiplied by 2^-14 (fp16's least positive number is 2^-24).
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define HAS_E4M3_CVT 1
#else
#define HAS_E4M3_CVT 0
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_CLUSTER 1  // thread block clusters and griddepcontrol
#else
#define HAS_CLUSTER 0
#endif
// The E2M1 conversion belongs to the architecture-specific targets (sm_100a, sm_120a), not to plain sm_100.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define HAS_E2M1_CVT 1
#else
#define HAS_E2M1_CVT 0
#endif

static constexpr int BLOCK = 16;

// ------------------------------------------------------------------------------------------------- memory
// Weights pass through once: they bypass L1, where the activations live. volatile keeps prefetches where they stand.
DEVICE uint4 load_weights16(const void* p) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}
DEVICE uint2 load_weights8(const void* p) {
  uint2 r;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  return r;
}
// Scales of neighbouring chunks share a sector, so these do stay in L1.
DEVICE u32 load_scales2(const void* p) {
  u16 r;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p));
  return r;
}
DEVICE u32 load_scale1(const void* p) {
  u16 r;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(r) : "l"(p));
  return r;
}
// Activations come from the kernel before this one, so never through the non-coherent path.
DEVICE uint4 load16(const void* p) { return *(const uint4*)p; }
DEVICE float2 load_float2(const void* p) { return *(const float2*)p; }
DEVICE void store16(void* p, uint4 v) { *(uint4*)p = v; }

// One lane's bytes of `PER_LANE` blocks of a row, and their scales.
template <int PER_LANE> struct Unit {
  u32 q[2 * PER_LANE];
  u32 scale;
};
DEVICE void load(Unit<2>& u, const u8* weight, const u8* scale) {
  const uint4 v = load_weights16(weight);
  u.q[0] = v.x, u.q[1] = v.y, u.q[2] = v.z, u.q[3] = v.w;
  u.scale = load_scales2(scale);
}
DEVICE void load(Unit<1>& u, const u8* weight, const u8* scale) {
  const uint2 v = load_weights8(weight);
  u.q[0] = v.x, u.q[1] = v.y;
  u.scale = load_scale1(scale);
}

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ------------------------------------------------------------------------------------------------- bits
DEVICE u32 prmt(u32 low, u32 high, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
  return r;
}
// v, in a way that the compiler cannot see: kept in a register, not made anew at each use. All lanes take part.
DEVICE u32 hidden(u32 v) {
  u32 r;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(r) : "r"(v + (threadIdx.x >> 10)));  // + 0
  return r;
}
// Both halves the lower or the upper one of a pair: moves, which ptxas makes a part of a 16-bit multiplication that takes it.
DEVICE u32 low_twice(u32 pair) {
  u32 r;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}" : "=r"(r) : "r"(pair));
  return r;
}
DEVICE u32 high_twice(u32 pair) {
  u32 r;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}" : "=r"(r) : "r"(pair));
  return r;
}

// ------------------------------------------------------------------------------------------------- 16-bit floats
DEVICE u32 mul_half2(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEVICE u32 fma_half2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE u32 add_half2(u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEVICE u32 mul_bf162(u32 a, u32 b) {  // as fma with -0, which sm_80 has and which keeps signs of zero
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
DEVICE float half_to_float(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
DEVICE u16 float_to_half(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
DEVICE u16 float_to_bf16(float f) {
  u16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
DEVICE u32 floats_to_half2(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE u32 floats_to_bf162(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
DEVICE float2 half2_to_float2(u32 h) { return make_float2(half_to_float((u16)h), half_to_float((u16)(h >> 16))); }
DEVICE float2 bf162_to_float2(u32 h) { return make_float2(__uint_as_float(h << 16), __uint_as_float(h & 0xFFFF0000u)); }

template <bool BF16> DEVICE float2 pair_to_float2(u32 h) { return BF16 ? bf162_to_float2(h) : half2_to_float2(h); }
template <bool BF16> DEVICE u16 float_to_16(float f) { return BF16 ? float_to_bf16(f) : float_to_half(f); }
template <bool BF16> DEVICE float float_from_16(u16 h) { return BF16 ? __uint_as_float((u32)h << 16) : half_to_float(h); }
// f as it is after a stay in the 16-bit type
template <bool BF16> DEVICE float through_16(float f) { return float_from_16<BF16>(float_to_16<BF16>(f)); }

// ------------------------------------------------------------------------------------------------- E4M3
// Two E4M3 bytes (the low half of v) to two fp16, exact; NaN stays NaN.
DEVICE u32 e4m3x2_to_half2(u32 v) {
#if HAS_E4M3_CVT
  u32 r;
  u16 h = (u16)v;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(h));
  return r;
#else
  // s eeee mmm lands in an fp16 of exponent 8 less; 2^8 mends that, and subnormals with it.
  u32 wide = (v & 0xFFu) | ((v & 0xFF00u) << 8);
  u32 magnitude = (wide & 0x007F007Fu) << 7;
  u32 nan = ((magnitude + 0x00800080u) >> 14 & 0x00010001u) * 0x7E00u;
  return mul_half2(magnitude | ((wide & 0x00800080u) << 8), 0x5C005C00u) | nan;
#endif
}
// Bytes 0, 1 and bytes 2, 3 of v.
DEVICE void e4m3x4_to_half2(u32 v, u32& first, u32& second) {
#if HAS_E4M3_CVT
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(first), "=r"(second) : "r"(v));
#else
  first = e4m3x2_to_half2(v), second = e4m3x2_to_half2(v >> 16);
#endif
}
DEVICE float2 e4m3x2_to_float2(u32 v) { return half2_to_float2(e4m3x2_to_half2(v)); }

// Nearest E4M3 byte of f in [2^-9, 448], ties to even.
DEVICE u32 float_to_e4m3(float f) {
#if HAS_E4M3_CVT
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(f));
  return r;
#else
  u32 bits = __float_as_uint(f);
  if (f < 0.015625f) return __float_as_uint(f + 16384.0f) & 15u;  // subnormal, steps of 2^-9 = ulp(2^14)
  bits += 0x0007FFFFu + (bits >> 20 & 1u);
  return (bits >> 20) - (120u << 3);
#endif
}
// Four floats that are 0 or normal E4M3 values as bytes.
DEVICE u32 exact_e4m3x4(float a, float b, float c, float d) {
#if HAS_E4M3_CVT
  u32 r;
  asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
      "mov.b32 %0, {l, h};\n}" : "=r"(r) : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
#else
  const float v[4] = {a, b, c, d};
  u32 r = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 bits = __float_as_uint(v[i]), magnitude = bits << 1 ? (bits >> 20 & 0x7FFu) - (120u << 3) & 0x7Fu : 0u;
    r |= (magnitude | (bits >> 24 & 0x80u)) << (8 * i);
  }
  return r;
#endif
}

// ------------------------------------------------------------------------------------------------- E2M1
// Eight codes of q as four pairs of fp16, each times E2M1_STEP. In a pair lie the elements that `pair_element` names:
// the cheap order of the architecture, which whoever lays out activations follows.
#if HAS_E2M1_CVT
static constexpr float E2M1_UNSTEP = 1.0f;
DEVICE constexpr int half_pair_element(int slot) { return slot; }
DEVICE void e2m1x8_to_half2(u32 q, u32 (&h)[4]) {
  asm("{\n.reg .b8 a, b, c, d;\nmov.b32 {a, b, c, d}, %4;\n"
      "cvt.rn.f16x2.e2m1x2 %0, a;\ncvt.rn.f16x2.e2m1x2 %1, b;\n"
      "cvt.rn.f16x2.e2m1x2 %2, c;\ncvt.rn.f16x2.e2m1x2 %3, d;\n}"
      : "=r"(h[0]), "=r"(h[1]), "=r"(h[2]), "=r"(h[3]) : "r"(q));
}
#else
static constexpr float E2M1_UNSTEP = 16384.0f;  // s ee m as the top of an fp16 is the value times 2^-14
DEVICE constexpr int half_pair_element(int slot) { return (slot >> 1) + 4 * (slot & 1); }
DEVICE void e2m1x8_to_half2(u32 q, u32 (&h)[4]) {
  u32 odd = (q & 0x80808080u) | ((q >> 3) & 0x0E0E0E0Eu);           // upper bytes of elements 1 3 5 7
  u32 even = ((q << 4) & 0x80808080u) | ((q << 1) & 0x0E0E0E0Eu);   // of elements 0 2 4 6
  h[0] = prmt(even, 0, 0x2404);
  h[1] = prmt(odd, 0, 0x2404);
  h[2] = even & 0xFF00FF00u;
  h[3] = odd & 0xFF00FF00u;
}
#endif
// The same as bf16, each times 2^-126: s ee m straddles the byte boundary there.
DEVICE constexpr int bf16_pair_element(int slot) { return (slot >> 1) + 4 * (slot & 1); }
DEVICE void e2m1x8_to_bf162(u32 q, u32 (&h)[4]) {
  h[0] = ((q << 12) & 0x80008000u) | ((q << 6) & 0x01C001C0u);
  h[1] = ((q << 8) & 0x80008000u) | ((q << 2) & 0x01C001C0u);
  h[2] = ((q << 4) & 0x80008000u) | ((q >> 2) & 0x01C001C0u);
  h[3] = (q & 0x80008000u) | ((q >> 6) & 0x01C001C0u);
}
// What brings those to value * scale * 2^-14: two E4M3 scales, of v's lower or UPPER half, as bf16, times 2^112; their signs
// must be clear. Four bits up they are bf16 of scale * 2^-120, subnormals too; 2^232 is beyond bf16, hence two steps.
template <bool UPPER = false> DEVICE u32 e4m3x2_to_bf162_up(u32 v) {
  const u32 wide = prmt(v, 0, UPPER ? 0x4342 : 0x4140) << 4;
  return mul_bf162(mul_bf162(wide, 0x7F007F00u), 0x74007400u);  // 2^127, 2^105
}

// v >> 16 by a dot product of its halves with 0 and 1: the pipe of dp4a does it, where shifts share one with PRMT and LOP3.
DEVICE u32 upper_half(u32 v) {
  u32 r;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(0x0100), "r"(0));
  return r;
}
// PRMT is a table of eight bytes; a selector nibble with bit 3 set gives eight copies of the byte's sign bit instead,
// that is zero for these tables. So one lookup of the codes as they stand yields 2*|e2m1| where the code is positive
// and 0 elsewhere, and one of the codes with their signs flipped the negative ones.
static constexpr u32 TWICE_LOW = 0x03020100u, TWICE_HIGH = 0x0C080604u;
// PRMT takes one immediate, so one half of the table wants a register; a caller in whose loop the compiler reloads it
// for each lookup passes a `low` that is TWICE_LOW in a way the compiler cannot see. `moved` of the two shifts, 0 to 2,
// go to the pipe of dp4a.
DEVICE void e2m1x8_split(u32 q, u32 (&positive)[2], u32 (&negative)[2], u32 low = TWICE_LOW, int moved = 0) {
  u32 flipped = q ^ 0x88888888u;
  positive[0] = prmt(low, TWICE_HIGH, q);
  positive[1] = prmt(low, TWICE_HIGH, moved > 0 ? upper_half(q) : q >> 16);
  negative[0] = prmt(low, TWICE_HIGH, flipped);
  negative[1] = prmt(low, TWICE_HIGH, moved > 1 ? upper_half(flipped) : flipped >> 16);
}
// Bytes 16 + 2*e2m1, in [4, 28], natural order: no byte borrows from its neighbour.
DEVICE void e2m1x8_to_offset(u32 q, u32 (&bytes)[2], u32 low = TWICE_LOW, int moved = 0) {
  u32 positive[2], negative[2];
  e2m1x8_split(q, positive, negative, low, moved);
  bytes[0] = 0x10101010u + positive[0] - negative[0];
  bytes[1] = 0x10101010u + positive[1] - negative[1];
}
// The 8 codes of a word of layout "tiles" (resetcli/cuda/families/hopper.py) as two words of E4M3, times 2^-6: the first
// four codes have their bits in place, the other four's are in what is left of each byte.
DEVICE u32 first_four(u32 q) { return q & 0x9C9C9C9Cu; }
DEVICE u32 second_four(u32 q) { return (__funnelshift_r(q, q, 2) & 0x98989898u) | ((q << 2) & 0x04040404u); }
// And as bf16, each times 2^-126: of those four bytes the first and third, and the second and fourth. Two shifts to the left
// of bits that do not meet are one multiplication (in the second four they meet below the sign, where nothing is kept).
DEVICE void first_four_bf16(u32 q, u32& even, u32& odd) {
  even = (q & 0x009C009Cu) * 0x110u & 0x81C081C0u;
  odd = (q & 0x80008000u) | ((q >> 4) & 0x01C001C0u);
}
DEVICE void second_four_bf16(u32 q, u32& even, u32& odd) {
  even = (q & 0x02610261u) * 0x44u & 0x81C081C0u;
  odd = (__funnelshift_r(q, q, 2) & 0x80408040u) | ((q >> 6) & 0x01800180u);
}

// ------------------------------------------------------------------------------------------------- arithmetic
DEVICE int dp4a(u32 a, u32 b, int c) {  // signed bytes
  int r;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE int dp4a_unsigned(u32 a, u32 b, int c) {  // a unsigned, b signed bytes
  int r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// float bits of 1.5 * 2^23: an int sum that starts there reads as the float MAGIC + sum, no conversion needed
static constexpr int MAGIC_BITS = 0x4B400000;
static constexpr float MAGIC = 12582912.0f;
// 2 * v, a whole number from -128 to 127, as an int in the lowest byte
DEVICE u32 twice_as_int(float v) { return __float_as_uint(fmaf(v, 2.0f, MAGIC)); }

template <bool BF16> DEVICE void mma_16x8x16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (BF16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ------------------------------------------------------------------------------------------------- launches
// Programmatic dependent launch. Of a launch with the attribute: it waits until what the kernel ahead of it wrote is
// there. For the next one, if that has the attribute: it may start when each CTA of this one has called let_next_launch
// or ended.
DEVICE void let_next_launch() {
#if HAS_CLUSTER
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void wait_for_previous() {
#if HAS_CLUSTER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// How the warps of a CTA share work: `groups` of them along N, the others along K, which the CTAs of a cluster cut as
// well. All are powers of two, since divisions take long where nothing has been asked of memory yet.
struct Cut {
  int groups, group, tile, rank, ranks, part, parts, part_bits, group_bits;
  __device__ __forceinline__ Cut(u32 warp, u32 split_bits, u32 rank_bits) {
    group_bits = 31 - __clz(blockDim.x >> 5) - split_bits, groups = 1 << group_bits, group = warp & (groups - 1);
    ranks = 1 << rank_bits, tile = blockIdx.x >> rank_bits, rank = blockIdx.x & (ranks - 1);
    part_bits = split_bits + rank_bits, parts = 1 << part_bits, part = (rank << split_bits) + (warp >> group_bits);
  }
};
DEVICE void cluster_sync() {
#if HAS_CLUSTER
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// *p (shared memory of this CTA) as CTA `rank` of the cluster has it
DEVICE float load_of_rank(const float* p, u32 rank) {
#if HAS_CLUSTER
  u32 own = shared_address(p), theirs;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(theirs));
  return v;
#else
  return *p;
#endif
}

// ------------------------------------------------------------------------------------------------- layouts
// Blocks that one lane reads of a row at once: two (16 bytes of codes), or one where rows are 8-byte aligned only.
DEVICE int lane_blocks(int k) { return k & 31 ? 1 : 2; }

// Activations for the tensor cores ("fragments"): [chunk][token tile][piece][lane][8 values]. A chunk is 64 * vec along
// K, lane = 4 * (token & 7) + t holds the 16 * vec values that lane t of a quad multiplies, 8 a piece.
// Returns the index of the piece of 8 values that holds k (a multiple of 8).
DEVICE u64 fragment_piece(int token, int k, int tiles, int vec) {
  int chunk = k / (64 * vec), rest = k - chunk * 64 * vec, t = rest / (16 * vec), piece = (rest - t * 16 * vec) >> 3;
  return (((u64)chunk * tiles + (token >> 3)) * (2 * vec) + piece) * 32 + (token & 7) * 4 + t;
}
// Activations for the CUDA cores: [chunk][token][piece][lane][16 bytes]. A lane takes `vec` blocks of each token a
// chunk, each as `pieces` times 16 bytes; so a warp reads 512 bytes in one go, and what a lane wants of the other
// tokens lies at constant distances. Where K ends within a chunk the rest of it is never read. Returns the byte offset
// of a piece of block b.
DEVICE u64 lane_piece(int token, int tokens, int b, int vec, int pieces, int piece) {
  int unit = b / vec, chunk = unit >> 5;
  return (((u64)chunk * tokens + token) * (vec * pieces) + (b - unit * vec) * pieces + piece) * 512 + (unit & 31) * 16;
}
// Their scales: [chunk][token][lane][vec]. Returns the index of that of block b.
DEVICE u64 lane_scale(int token, int tokens, int b, int vec) {
  int unit = b / vec, chunk = unit >> 5;
  return (((u64)chunk * tokens + token) * 32 + (unit & 31)) * vec + b - unit * vec;
}
