// Hopper's own instructions (sm_90a), for hopper.cu and wide.cu: shared memory by address, barriers that count arrivals
// and bytes (mbarrier), bulk copies, and the CTAs of a cluster.
#pragma once
#include "nvfp4.cuh"

DEVICE uint4 shared16(u32 a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
  return v;
}
DEVICE uint2 shared8(u32 a) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a));
  return v;
}
DEVICE u32 shared4(u32 a) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a));
  return v;
}
DEVICE void init_barrier(u32 at, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }  // made just now
DEVICE u32 address_in(u32 at, u32 cta) {  // of the cluster
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(cta));
  return there;
}
// How a thread arrives at a barrier: not at all, at its own CTA's (at `own`), or at another's (at `there`). Without
// branches, since wgmma is under way.
enum Arrival { NOWHERE, HERE, THERE };
DEVICE void arrive(Arrival how, u32 own, u32 there) {
  asm volatile("{\n.reg .pred p, q;\nsetp.eq.u32 p, %2, 1;\nsetp.eq.u32 q, %2, 2;\n"
               "@p mbarrier.arrive.shared.b64 _, [%0];\n@q mbarrier.arrive.shared::cluster.b64 _, [%1];\n}"
               ::"r"(own), "r"(there), "r"((u32)how) : "memory");
}
DEVICE void arrive_expecting(u32 at, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
DEVICE void wait_for(u32 at, u32 parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra AGAIN;\n}"
               ::"r"(at), "r"(parity) : "memory");
}
// As wait_for, acquiring at cluster scope: what other CTAs stored here (send8, send16) is seen. That invalidates L1, so
// rings, which bulk copies fill, are waited for without.
DEVICE void wait_for_cluster(u32 at, u32 parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
               "@!p bra AGAIN;\n}" ::"r"(at), "r"(parity) : "memory");
}
DEVICE void bulk_copy(u32 to, const u8* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// To the same place of each CTA in `ctas`, whose barriers count it.
DEVICE void bulk_copy_to(u16 ctas, u32 to, const u8* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1], %2, [%3], %4;"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(ctas) : "memory");
}
// 8 or 16 bytes into another CTA's shared memory, counted by its barrier.
DEVICE void send8(u32 to, const u32 (&v)[2], u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];"
               ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(barrier) : "memory");
}
DEVICE void send16(u32 to, const u32 (&v)[4], u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"
               ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(barrier) : "memory");
}
// All threads of a cluster are here: an order of execution, for barriers that were published and for shared memory whose
// values have been used. What others wrote is not visible by it, and so it does not wait for memory: not for arrivals at
// other CTAs' barriers either.
DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
DEVICE u32 transpose8(u32 v) {  // an 8 x 8 matrix of 16-bit values, two a lane
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
