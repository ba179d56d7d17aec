// A global operator new whose n-th call fails, counted over what the processes of a simulated cluster
// allocate (tests/simulate/allocations.h), and the number of blocks that live. One thread sets, any thread
// allocates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ringmaster::failures {

// Counts from zero again; the n-th fails, once. 0: none.
void fail_allocation(long n);
long allocations();  // since
bool allocation_failed();

long live_blocks();  // of the whole program

}  // namespace ringmaster::failures
