// Graphs: launches, nodes of all types, changes, user objects.

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "check.h"

namespace simcuda::testing {

namespace {

cudaGraph_t new_graph() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  return graph;
}

void count_up(void* data) { ++*static_cast<std::atomic<int>*>(data); }

cudaGraphNode_t add_host(cudaGraph_t graph, std::vector<cudaGraphNode_t> needs, cudaHostFn_t function, void* data) {
  cudaGraphNode_t node = nullptr;
  const cudaHostNodeParams params{function, data};
  OK(cudaGraphAddHostNode(&node, graph, needs.data(), needs.size(), &params));
  return node;
}

struct Conditional {
  cudaGraphConditionalHandle handle = 0;
  cudaGraphNode_t node = nullptr;
  std::vector<cudaGraph_t> bodies;
};

Conditional add_conditional(cudaGraph_t graph, cudaGraphConditionalNodeType type, unsigned size, unsigned value,
                            std::vector<cudaGraphNode_t> needs = {}) {
  Conditional made;
  OK(cudaGraphConditionalHandleCreate(&made.handle, graph, value, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = made.handle;
  params.conditional.type = type;
  params.conditional.size = size;
  OK(cudaGraphAddNode(&made.node, graph, needs.data(), nullptr, needs.size(), &params));
  made.bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
  return made;
}

// Captures work into an existing graph.
template <typename Work>
void fill(cudaGraph_t graph, Work work) {
  const cudaStream_t stream = new_stream();
  cudaGraph_t ended = nullptr;
  OK(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
  OK(launch(stream, work));
  OK(cudaStreamEndCapture(stream, &ended));
}

void run(cudaGraph_t graph) {
  const cudaStream_t stream = new_stream();
  const cudaGraphExec_t exec = instantiated(graph);
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(exec));
}

}  // namespace

TEST(a_launch_does_not_wait) {
  const cudaStream_t stream = new_stream();
  Gate gate;
  const cudaGraph_t graph = captured(stream, [&] { OK(launch(stream, gate.work())); });
  const cudaGraphExec_t exec = instantiated(graph);
  OK(cudaGraphLaunch(exec, stream));
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
  OK(cudaGraphExecDestroy(exec));  // while it runs
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(exec, stream));
  gate.open();
  OK(cudaStreamSynchronize(stream));
}

TEST(launches_of_one_graph_come_one_after_the_other) {
  const cudaStream_t first = new_stream(), second = new_stream();
  Gate gate;
  std::atomic<int> inside{0}, most{0};
  const cudaGraph_t graph = captured(first, [&] {
    OK(launch(first, [&] {
      most = std::max(most.load(), ++inside);
      usleep(2000);
      --inside;
    }));
  });
  const cudaGraphExec_t exec = instantiated(graph);
  OK(launch(first, gate.work()));
  OK(cudaGraphLaunch(exec, first));
  OK(cudaGraphLaunch(exec, second));
  for (int i = 0; i < 5; ++i) {
    OK(cudaGraphLaunch(exec, first));
    OK(cudaGraphLaunch(exec, second));
  }
  GIVES(cudaErrorNotReady, cudaStreamQuery(second));
  gate.open();
  OK(cudaDeviceSynchronize());
  EQUAL(most.load(), 1);
}

TEST(nodes_added_by_hand_run_in_the_order_of_their_dependencies) {
  const cudaGraph_t graph = new_graph();
  static std::vector<int> order;
  const auto push = [](int number) -> cudaHostFn_t {
    static const cudaHostFn_t functions[] = {[](void*) { order.push_back(0); }, [](void*) { order.push_back(1); },
                                             [](void*) { order.push_back(2); }};
    return functions[number];
  };
  const cudaGraphNode_t last = add_host(graph, {}, push(2), nullptr), middle = add_host(graph, {}, push(1), nullptr),
                        first = add_host(graph, {}, push(0), nullptr);
  const cudaGraphNode_t from[] = {first, middle}, to[] = {middle, last};
  OK(cudaGraphAddDependencies(graph, from, to, nullptr, 2));
  run(graph);
  CHECK((order == std::vector<int>{0, 1, 2}));
  GIVES(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, from, to, nullptr, 1));  // the edge already exists
  OK(cudaGraphAddDependencies(graph, &last, &first, nullptr, 1));
  cudaGraphExec_t exec = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));  // a cycle
  OK(cudaGraphRemoveDependencies(graph, &last, &first, nullptr, 1));
  OK(cudaGraphDestroyNode(middle));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroyNode(middle));
  std::size_t count = 0;
  OK(cudaGraphGetRootNodes(graph, nullptr, &count));
  EQUAL(count, 2u);
}

TEST(nodes_copy_and_fill_memory) {
  unsigned char* memory = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&memory), 64));
  const cudaGraph_t graph = new_graph();
  cudaGraphNode_t set = nullptr, copied = nullptr;
  cudaMemsetParams fill{};
  fill.dst = memory;
  fill.value = 7;
  fill.elementSize = 1;
  fill.width = 64;
  fill.height = 1;
  OK(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &fill));
  unsigned char host[64] = {};
  OK(cudaGraphAddMemcpyNode1D(&copied, graph, &set, 1, host, memory, 64, cudaMemcpyDeviceToHost));
  cudaMemsetParams params{};
  OK(cudaGraphMemsetNodeGetParams(set, &params));
  CHECK(params.dst == memory);
  EQUAL(params.value, 7u);
  const cudaStream_t stream = new_stream();
  const cudaGraphExec_t exec = instantiated(graph);
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(int{host[63]}, 7);
  fill.value = 9;
  OK(cudaGraphExecMemsetNodeSetParams(exec, set, &fill));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(int{host[63]}, 9);
  OK(cudaGraphNodeSetEnabled(exec, copied, 0));
  host[63] = 1;
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(int{host[63]}, 1);
}

TEST(child_graphs_are_copies) {
  std::atomic<int> ran{0};
  const cudaGraph_t child = new_graph(), graph = new_graph();
  add_host(child, {}, count_up, &ran);
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  add_host(child, {}, count_up, &ran);
  OK(cudaGraphDestroy(child));
  run(graph);
  EQUAL(ran.load(), 1);
  cudaGraph_t inside = nullptr;
  OK(cudaGraphChildGraphNodeGetGraph(node, &inside));
  std::size_t count = 0;
  OK(cudaGraphGetNodes(inside, nullptr, &count));
  EQUAL(count, 1u);
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(inside));
}

TEST(a_graph_that_is_launched_in_a_capture_becomes_part_of_it) {
  const cudaStream_t stream = new_stream();
  std::atomic<int> ran{0};
  const cudaGraphExec_t inner = instantiated(captured(stream, [&] { OK(launch(stream, [&ran] { ++ran; })); }));
  const cudaGraph_t graph = captured(stream, [&] {
    OK(cudaGraphLaunch(inner, stream));
    OK(cudaGraphLaunch(inner, stream));
  });
  OK(cudaGraphExecDestroy(inner));
  EQUAL(ran.load(), 0);
  run(graph);
  EQUAL(ran.load(), 2);
}

TEST(conditional_nodes_run_the_body_that_the_value_names) {
  for (unsigned value = 0; value < 3; ++value) {
    std::atomic<int> one{0}, other{0}, third{0};
    const cudaGraph_t graph = new_graph();
    const Conditional only = add_conditional(graph, cudaGraphCondTypeIf, 1, value);
    fill(only.bodies[0], [&one] { ++one; });
    const Conditional both = add_conditional(graph, cudaGraphCondTypeIf, 2, value);
    fill(both.bodies[0], [&one] { ++one; });
    fill(both.bodies[1], [&other] { ++other; });
    const Conditional several = add_conditional(graph, cudaGraphCondTypeSwitch, 2, value);
    fill(several.bodies[1], [&third] { ++third; });
    run(graph);
    EQUAL(one.load(), value != 0 ? 2 : 0);
    EQUAL(other.load(), value == 0 ? 1 : 0);
    EQUAL(third.load(), value == 1 ? 1 : 0);
  }
}

TEST(work_sets_the_value_of_a_condition) {
  const cudaGraph_t graph = new_graph();
  int rounds = 0;
  const Conditional loop = add_conditional(graph, cudaGraphCondTypeWhile, 1, 1);
  fill(loop.bodies[0], [&rounds, handle = loop.handle] { simcudaSetConditional(handle, ++rounds % 5 != 0); });
  run(graph);
  EQUAL(rounds, 5);
  const cudaStream_t stream = new_stream();
  const cudaGraphExec_t exec = instantiated(graph);
  for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(exec, stream));  // each launch begins with the default value
  OK(cudaStreamSynchronize(stream));
  EQUAL(rounds, 20);
  simcudaSetConditional(loop.handle, 1);  // has no effect outside a launch
}

TEST(conditions_are_nested) {
  const cudaGraph_t graph = new_graph();
  std::atomic<int> ran{0};
  const Conditional outer = add_conditional(graph, cudaGraphCondTypeIf, 1, 1);
  const Conditional inner = add_conditional(outer.bodies[0], cudaGraphCondTypeIf, 1, 1);
  fill(inner.bodies[0], [&ran] { ++ran; });
  run(graph);
  EQUAL(ran.load(), 1);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = 123456;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
}

TEST(external_events_are_pending_from_the_launch_on) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t event = new_event();
  const cudaGraph_t graph =
      captured(stream, [&] { OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal)); });
  OK(cudaEventQuery(event));
  const cudaGraphExec_t exec = instantiated(graph);
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(cudaGraphLaunch(exec, stream));
  GIVES(cudaErrorNotReady, cudaEventQuery(event));
  gate.open();
  OK(cudaEventSynchronize(event));
}

TEST(external_waits_wait_for_what_was_recorded_at_the_launch) {
  const cudaStream_t stream = new_stream(), other = new_stream();
  const cudaEvent_t event = new_event();
  std::atomic<bool> ran{false};
  const cudaGraph_t graph = captured(stream, [&] {
    OK(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
    OK(launch(stream, [&ran] { ran = true; }));
  });
  const cudaGraphExec_t exec = instantiated(graph);
  Gate gate;
  OK(launch(other, gate.work()));
  OK(cudaEventRecord(event, other));
  OK(cudaGraphLaunch(exec, stream));
  const cudaStream_t third = new_stream();
  OK(launch(third, [] {}));
  OK(cudaStreamSynchronize(third));
  CHECK(!ran);
  gate.open();
  OK(cudaStreamSynchronize(stream));
  CHECK(ran);
}

TEST(graphs_are_updated_by_those_of_the_same_shape) {
  const cudaStream_t stream = new_stream();
  std::atomic<int> first{0}, second{0};
  const cudaGraph_t one = captured(stream, [&] { OK(launch(stream, [&first] { ++first; })); });
  const cudaGraph_t other = captured(stream, [&] { OK(launch(stream, [&second] { ++second; })); });
  const cudaGraph_t longer = captured(stream, [&] {
    OK(launch(stream, [] {}));
    OK(launch(stream, [] {}));
  });
  const cudaGraph_t host = captured(stream, [&] { OK(cudaLaunchHostFunc(stream, [](void*) {}, nullptr)); });
  const cudaGraphExec_t exec = instantiated(one);
  cudaGraphExecUpdateResultInfo info{};
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, longer, &info));
  EQUAL(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  GIVES(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, host, &info));
  EQUAL(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
  OK(cudaGraphExecUpdate(exec, other, &info));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(first.load(), 0);
  EQUAL(second.load(), 1);
}

TEST(clones_have_nodes_of_their_own) {
  const cudaGraph_t graph = new_graph();
  std::atomic<int> ran{0};
  const cudaGraphNode_t node = add_host(graph, {}, count_up, &ran);
  add_host(graph, {node}, count_up, &ran);
  cudaGraph_t clone = nullptr;
  OK(cudaGraphClone(&clone, graph));
  cudaGraphNode_t found = nullptr;
  OK(cudaGraphNodeFindInClone(&found, node, clone));
  CHECK(found != node);
  OK(cudaGraphDestroy(graph));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  OK(cudaGraphNodeGetType(found, &type));
  EQUAL(type, cudaGraphNodeTypeHost);
  GIVES(cudaErrorInvalidValue, cudaGraphNodeGetType(node, &type));
  std::size_t count = 0;
  OK(cudaGraphNodeGetDependentNodes(found, nullptr, nullptr, &count));
  EQUAL(count, 1u);
  run(clone);
  EQUAL(ran.load(), 2);
}

TEST(user_objects_live_as_long_as_graphs_need_them) {
  const cudaStream_t stream = new_stream();
  static std::atomic<int> destroyed{0};
  static std::atomic<bool> refused{false};
  cudaUserObject_t object = nullptr;
  OK(cudaUserObjectCreate(
      &object, nullptr,
      [](void*) {
        void* memory = nullptr;
        refused = cudaMalloc(&memory, 16) == cudaErrorNotPermitted;
        ++destroyed;
      },
      1, cudaUserObjectNoDestructorSync));
  Gate gate;
  const cudaGraph_t graph = captured(stream, [&] { OK(launch(stream, gate.work())); });
  OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  const cudaGraphExec_t exec = instantiated(graph);
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(exec, stream));
  gate.await();
  OK(cudaGraphExecDestroy(exec));
  EQUAL(destroyed.load(), 0);
  gate.open();
  OK(cudaStreamSynchronize(stream));
  while (destroyed.load() == 0) usleep(100);
  CHECK(refused);
  GIVES(cudaErrorInvalidValue, cudaUserObjectCreate(&object, nullptr, nullptr, 1, cudaUserObjectNoDestructorSync));
}

TEST(a_failure_in_a_graph_ends_its_launch) {
  const cudaStream_t stream = new_stream();
  bool ran = false;
  const cudaGraph_t graph = captured(stream, [&] {
    OK(launch(stream, [] { throw std::runtime_error("bad"); }));
    OK(launch(stream, [&ran] { ran = true; }));
  });
  const cudaGraphExec_t exec = instantiated(graph);
  OK(cudaGraphLaunch(exec, stream));
  GIVES(cudaErrorAssert, cudaStreamSynchronize(stream));
  CHECK(!ran);
  GIVES(cudaErrorAssert, cudaGraphLaunch(exec, stream));
}

TEST(graphs_are_printed_for_graphviz) {
  const cudaStream_t stream = new_stream();
  const cudaGraph_t graph = captured(stream, [&] {
    OK(launch(stream, [] {}));
    OK(cudaLaunchHostFunc(stream, [](void*) {}, nullptr));
  });
  char path[] = "/tmp/simcuda_dot_XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  OK(cudaGraphDebugDotPrint(graph, path, cudaGraphDebugDotFlagsVerbose));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  close(file);
  unlink(path);
  CHECK(text.str().find("digraph") == 0);
  CHECK(text.str().find("KERNEL") != std::string::npos);
  CHECK(text.str().find("\"graph_node_0\" -> \"graph_node_1\"") != std::string::npos);
  GIVES(cudaErrorOperatingSystem, cudaGraphDebugDotPrint(graph, "/no/such/folder/file", 0));
}

TEST(wrong_flags_and_handles_are_refused) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  GIVES(cudaErrorInvalidValue, cudaGraphCreate(&graph, 1));
  GIVES(cudaErrorInvalidValue, cudaGraphDestroy(nullptr));
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, nullptr, 0));
  GIVES(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, new_graph(), 1024));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, new_stream()));
  GIVES(cudaErrorInvalidValue, cudaGraphExecDestroy(nullptr));
  unsigned long long flags = 0;
  OK(cudaGraphInstantiate(&exec, new_graph(), cudaGraphInstantiateFlagAutoFreeOnLaunch));
  OK(cudaGraphExecGetFlags(exec, &flags));
  EQUAL(flags, static_cast<unsigned long long>(cudaGraphInstantiateFlagAutoFreeOnLaunch));
  OK(cudaGraphUpload(exec, new_stream()));
  OK(cudaGraphLaunch(exec, new_stream()));  // an empty graph
}

}  // namespace simcuda::testing
