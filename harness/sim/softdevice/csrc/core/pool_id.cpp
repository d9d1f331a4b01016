#include "pool_id.h"

#include <atomic>

namespace soft {

PoolId new_pool_id() {
  static std::atomic<std::uint64_t> last{0};
  return {0, ++last};
}

}  // namespace soft
