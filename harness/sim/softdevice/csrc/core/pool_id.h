// Ids of memory pools.
#pragma once

#include <cstdint>
#include <utility>

namespace soft {

using PoolId = std::pair<std::uint64_t, std::uint64_t>;  // torch's MempoolId_t; {0, 0} is the device's own pool

PoolId new_pool_id();

}  // namespace soft
