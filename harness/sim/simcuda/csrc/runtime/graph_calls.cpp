// The interface: whole graphs, their launches, and user objects.
#include <cuda_runtime_api.h>

#include <fstream>

#include "call.h"
#include "conditions.h"
#include "context.h"
#include "dot.h"
#include "exec.h"
#include "graph.h"
#include "nodes.h"

using namespace simcuda;

namespace {

constexpr unsigned long long instantiation_flags =
    cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload | cudaGraphInstantiateFlagUseNodePriority;

cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags) {
  check((flags & cudaGraphInstantiateFlagDeviceLaunch) == 0, cudaErrorNotSupported);
  check((flags & ~instantiation_flags) == 0);
  auto exec = std::make_shared<Exec>(*find_graph(graph), flags);
  const cudaGraphExec_t handle = exec->handle();
  add_exec(std::move(exec));
  return handle;
}

UserObject& user_object(cudaUserObject_t handle) {
  check(handle != nullptr);
  return *reinterpret_cast<UserObject*>(handle);
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(graph != nullptr && flags == 0);
    *graph = new_graph()->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  SIMCUDA_CALL(driver, {
    check(!find_graph(graph)->part);
    forget_graph(graph);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  SIMCUDA_CALL(device, {
    check(clone != nullptr);
    *clone = find_graph(graph)->clone()->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* node, cudaGraphNode_t original,
                                                    cudaGraph_t clone) {
  SIMCUDA_CALL(device, {
    check(node != nullptr);
    const std::lock_guard lock(graphs_mutex());
    const Node& wanted = find_node(original);
    for (const auto& one : find_graph(clone)->nodes) {
      if (one->cloned_from != &wanted) continue;
      *node = one->handle();
      return;
    }
    throw Error(cudaErrorInvalidValue);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                         unsigned long long flags) {
  SIMCUDA_CALL(device, {
    check(exec != nullptr);
    *exec = instantiate(graph, flags);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

SIMCUDA_EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                          cudaGraphInstantiateParams* params) {
  SIMCUDA_CALL(device, {
    check(exec != nullptr && params != nullptr);
    params->errNode_out = nullptr;
    params->result_out = cudaGraphInstantiateError;
    *exec = instantiate(graph, params->flags);
    params->result_out = cudaGraphInstantiateSuccess;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  SIMCUDA_CALL(device, {
    check(flags != nullptr);
    *flags = find_exec(exec)->flags();
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                               cudaGraphExecUpdateResultInfo* info) {
  SIMCUDA_CALL(device, {
    check(info != nullptr);
    *info = {};
    info->result = cudaGraphExecUpdateError;
    Node* const node = find_exec(exec)->update(*find_graph(graph), info->result);
    info->errorNode = node ? node->handle() : nullptr;
    return info->result == cudaGraphExecUpdateSuccess ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    find_exec(exec);
    const auto found = find_stream(stream);
    check(found->device().error());
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return find_exec(exec)->launch(*find_stream(stream)); });
}

SIMCUDA_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  SIMCUDA_CALL(driver, { check(remove_exec(exec) != nullptr); });
}

SIMCUDA_EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(path != nullptr);
    std::ofstream file(path);
    file << dot(*find_graph(graph), (flags & cudaGraphDebugDotFlagsVerbose) != 0);
    file.close();
    check(!file.fail(), cudaErrorOperatingSystem);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph,
                                                            unsigned default_value, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(handle != nullptr && (flags & ~unsigned{cudaGraphCondAssignDefault}) == 0);
    static std::atomic<cudaGraphConditionalHandle> next{1};
    const auto found = find_graph(graph);
    const std::lock_guard lock(graphs_mutex());
    *handle = next.fetch_add(1);
    found->conditionals[*handle] =
        std::make_shared<Conditional>(Conditional{*handle, default_value, (flags & cudaGraphCondAssignDefault) != 0});
  });
}

SIMCUDA_EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* handle, void* object, cudaHostFn_t destroy,
                                                unsigned count, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(handle != nullptr && destroy != nullptr && count > 0 && flags == cudaUserObjectNoDestructorSync);
    *handle = reinterpret_cast<cudaUserObject_t>(new UserObject{object, destroy, count});
  });
}

SIMCUDA_EXPORT cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
  SIMCUDA_CALL(device, {
    check(count > 0);
    retain(user_object(handle), count);
  });
}

SIMCUDA_EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
  SIMCUDA_CALL(driver, {
    check(count > 0);
    release(user_object(handle), count);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count,
                                                     unsigned flags) {
  SIMCUDA_CALL(device, {
    check(count > 0 && (flags & ~unsigned{cudaGraphUserObjectMove}) == 0);
    const auto found = find_graph(graph);
    UserObject& object = user_object(handle);
    const std::lock_guard lock(graphs_mutex());
    if (!(flags & cudaGraphUserObjectMove)) retain(object, count);
    found->user_objects[&object] += count;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count) {
  SIMCUDA_CALL(device, {
    const auto found = find_graph(graph);
    UserObject& object = user_object(handle);
    const std::lock_guard lock(graphs_mutex());
    const auto entry = found->user_objects.find(&object);
    check(entry != found->user_objects.end() && count > 0 && entry->second >= count);
    entry->second -= count;
    if (entry->second == 0) found->user_objects.erase(entry);
    release(object, count);
  });
}

// For observers. Return 0 if there is no such graph or node.

SIMCUDA_EXPORT std::uint32_t simcudaGraphNumber(const void* handle) {
  try {
    return find_graph(static_cast<cudaGraph_t>(const_cast<void*>(handle)))->number;
  } catch (const Error&) {
    return 0;
  }
}

SIMCUDA_EXPORT std::uint32_t simcudaGraphExecNumber(const void* handle) {
  try {
    return find_exec(static_cast<cudaGraphExec_t>(const_cast<void*>(handle)))->number();
  } catch (const Error&) {
    return 0;
  }
}

SIMCUDA_EXPORT std::uint64_t simcudaGraphNodeNumber(const void* handle) {
  const std::lock_guard lock(graphs_mutex());
  try {
    const Node& node = find_node(static_cast<cudaGraphNode_t>(const_cast<void*>(handle)));
    return node_number(node.graph->number, node.id);
  } catch (const Error&) {
    return 0;
  }
}

// For simulated work, which calls this as kernels call cudaGraphSetConditional.
SIMCUDA_EXPORT void simcudaSetConditional(unsigned long long handle, unsigned value) { set_condition(handle, value); }
