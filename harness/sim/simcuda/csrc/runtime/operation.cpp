#include "operation.h"

#include "process.h"

namespace simcuda {

Work host_work(cudaHostFn_t function, void* data) {
  return [function, data] {
    const InHostFunction inside;
    function(data);
  };
}

}  // namespace simcuda
