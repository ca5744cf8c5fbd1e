// NVFP4 weights [N, K] to bf16 or fp16, code * block scale without the global factor: exact in either type.
//
// For prefill, where a library's matrix product on 16-bit weights beats ours. What binds it: writing 2 bytes a value
// (and reading 9/16). One thread takes 32 values where rows allow 16-byte loads, 16 elsewhere, and writes each 8 as
// 16 bytes; a warp's stores cover whole sectors, which is all that memory asks for. What was traded: shared memory
// would make each store instruction contiguous as well, for a synchronization.
#include "nvfp4.cuh"

template <bool BF16> DEVICE void emit_block(u32 low, u32 high, u32 scale, u8* out) {
  u32 q[2] = {low, high};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 h[4], w[4];
    if (BF16)
      e2m1x8_to_bf162(q[i], h);
    else
      e2m1x8_to_half2(q[i], h);
#pragma unroll
    for (int s = 0; s < 4; s++) h[s] = BF16 ? mul_bf162(h[s], scale) : mul_half2(h[s], scale);
    if (half_pair_element(1) == 1 && !BF16) {
#pragma unroll
      for (int s = 0; s < 4; s++) w[s] = h[s];
    } else {  // pairs (0 4) (1 5) (2 6) (3 7) to natural order, and off the step of 2^-14
      const u32 up = BF16 ? 0x46804680u : 0x74007400u;
#pragma unroll
      for (int s = 0; s < 4; s++) h[s] = BF16 ? mul_bf162(h[s], up) : mul_half2(h[s], up);
      w[0] = prmt(h[0], h[1], 0x5410);
      w[1] = prmt(h[2], h[3], 0x5410);
      w[2] = prmt(h[0], h[1], 0x7632);
      w[3] = prmt(h[2], h[3], 0x7632);
    }
    store16(out + 16 * i, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

template <bool BF16> DEVICE u32 pair(u32 two) { return BF16 ? e4m3x2_to_bf162_up(two) : e4m3x2_to_half2(two); }

template <bool BF16> DEVICE void dequantize(const u8* weight, const u8* scale, u8* out, int n, int k) {
  let_next_launch();
  wait_for_previous();
  const u64 blocks = (u64)n * (k / BLOCK), i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k & 31) {
    if (i >= blocks) return;
    const uint2 q = load_weights8(weight + i * 8);
    const u32 s = pair<BF16>(load_scale1(scale + i));
    emit_block<BF16>(q.x, q.y, low_twice(s), out + i * 32);
  } else {
    if (2 * i >= blocks) return;
    const uint4 q = load_weights16(weight + i * 16);
    const u32 s = pair<BF16>(load_scales2(scale + i * 2));
    emit_block<BF16>(q.x, q.y, low_twice(s), out + i * 64);
    emit_block<BF16>(q.z, q.w, high_twice(s), out + i * 64 + 32);
  }
}

extern "C" __global__ void __launch_bounds__(256)
dequantize_bf16(const u8* weight, const u8* scale, u8* out, int n, int k) {
  dequantize<true>(weight, scale, out, n, k);
}
extern "C" __global__ void __launch_bounds__(256)
dequantize_fp16(const u8* weight, const u8* scale, u8* out, int n, int k) {
  dequantize<false>(weight, scale, out, n, k);
}
