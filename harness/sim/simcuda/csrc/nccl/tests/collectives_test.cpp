// The results of collectives and messages, and their order with other work.

#include <cstdint>
#include <cstring>

#include "clients.h"

namespace simcuda::testing {

TEST(a_sum_is_on_every_rank_when_the_last_one_has_come) {
  Ranks ranks(3);
  std::vector<float*> values;
  ranks.each([&](int rank) { values.push_back(filled<float>(100, static_cast<float>(rank + 1))); });
  Gate gate;
  launch(ranks.stream(2), gate.work());
  ranks.grouped([&](int rank) {
    float* const own = values[Ranks::at(rank)];
    OK(ncclAllReduce(own, own, 100, ncclFloat, ncclSum, ranks.communicator(rank), ranks.stream(rank)));
  });
  gate.await();
  ranks.each([&](int rank) { GIVES(cudaErrorNotReady, cudaStreamQuery(ranks.stream(rank))); });
  EQUAL(values[0][7], 1.0F);
  gate.open();
  ranks.synchronize();
  for (const float* const own : values) EQUAL(own[99], 6.0F);
}

TEST(more_collectives_wait_than_there_are_threads) {
  Ranks ranks(2);
  std::vector<cudaStream_t> streams(40);
  OK(cudaSetDevice(0));
  for (cudaStream_t& stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  auto* const value = filled<int>(1, 1);
  std::vector<ncclComm_t> first(streams.size()), second(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(cudaSetDevice(0));
    OK(ncclCommInitRank(&first[i], 2, id, 0));
    OK(cudaSetDevice(1));
    OK(ncclCommInitRank(&second[i], 2, id, 1));
    OK(ncclGroupEnd());
    OK(cudaSetDevice(0));
    OK(ncclAllReduce(value, value, 1, ncclInt, ncclMax, first[i], streams[i]));
  }
  bool ran = false;
  cudaStream_t other = nullptr;
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  launch(other, [&ran] { ran = true; });
  OK(cudaStreamSynchronize(other));
  CHECK(ran);
  OK(cudaSetDevice(1));
  auto* const peer = filled<int>(1, 2);
  for (ncclComm_t each : second) OK(ncclAllReduce(peer, peer, 1, ncclInt, ncclMax, each, ranks.stream(1)));
  OK(cudaSetDevice(0));
  for (cudaStream_t stream : streams) OK(cudaStreamSynchronize(stream));
  EQUAL(*value, 2);
}

TEST(parts_are_gathered_and_scattered_in_the_order_of_ranks) {
  Ranks ranks(4);
  std::vector<int*> parts, wholes;
  ranks.each([&](int rank) {
    parts.push_back(filled<int>(2, rank));
    wholes.push_back(filled<int>(8, -1));
  });
  ranks.grouped([&](int rank) {
    OK(ncclAllGather(parts[Ranks::at(rank)], wholes[Ranks::at(rank)], 2, ncclInt, ranks.communicator(rank),
                     ranks.stream(rank)));
  });
  ranks.grouped([&](int rank) {
    OK(ncclReduceScatter(wholes[Ranks::at(rank)], parts[Ranks::at(rank)], 2, ncclInt, ncclSum, ranks.communicator(rank),
                         ranks.stream(rank)));
  });
  ranks.synchronize();
  for (int rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 8; ++i) EQUAL(wholes[Ranks::at(rank)][i], i / 2);
    EQUAL(parts[Ranks::at(rank)][1], 4 * rank);
  }
}

TEST(messages_of_a_group_cross) {
  Ranks ranks(2);
  std::vector<double*> given, got;
  ranks.each([&](int rank) {
    given.push_back(filled<double>(1000, rank + 0.5));
    got.push_back(filled<double>(1000, 0));
  });
  ranks.grouped([&](int rank) {
    OK(ncclSend(given[Ranks::at(rank)], 1000, ncclDouble, 1 - rank, ranks.communicator(rank), ranks.stream(rank)));
    OK(ncclRecv(got[Ranks::at(rank)], 1000, ncclDouble, 1 - rank, ranks.communicator(rank), ranks.stream(rank)));
  });
  ranks.synchronize();
  EQUAL(got[0][999], 1.5);
  EQUAL(got[1][0], 0.5);
}

TEST(averages_are_sums_of_multiplied_inputs) {
  Ranks ranks(3);
  std::vector<float*> values;
  std::vector<std::int32_t*> whole;
  ranks.each([&](int rank) {
    values.push_back(filled<float>(1, static_cast<float>(rank)));
    whole.push_back(filled<std::int32_t>(1, rank == 0 ? -5 : 0));
  });
  ranks.grouped([&](int rank) {
    OK(ncclAllReduce(values[Ranks::at(rank)], values[Ranks::at(rank)], 1, ncclFloat, ncclAvg, ranks.communicator(rank),
                     ranks.stream(rank)));
    OK(ncclAllReduce(whole[Ranks::at(rank)], whole[Ranks::at(rank)], 1, ncclInt32, ncclAvg, ranks.communicator(rank),
                     ranks.stream(rank)));
  });
  ranks.synchronize();
  EQUAL(*values[0], 1 * (1.0F / 3) + 2 * (1.0F / 3));
  EQUAL(*whole[2], -1);
}

TEST(an_operator_multiplies_inputs) {
  Ranks ranks(2);
  std::vector<float*> values;
  ranks.each([&](int rank) { values.push_back(filled<float>(3, static_cast<float>(rank + 1))); });
  float* const factor = filled<float>(1, 0);
  launch(ranks.stream(1), [factor] { *factor = 10; });
  std::vector<ncclRedOp_t> ops(2);
  ranks.grouped([&](int rank) {
    float two = 2;
    ncclRedOp_t& op = ops[Ranks::at(rank)];
    OK(ncclRedOpCreatePreMulSum(&op, rank == 0 ? &two : factor, ncclFloat,
                                rank == 0 ? ncclScalarHostImmediate : ncclScalarDevice, ranks.communicator(rank)));
    two = 0;
    float* const own = values[Ranks::at(rank)];
    OK(ncclAllReduce(own, own, 3, ncclFloat, op, ranks.communicator(rank), ranks.stream(rank)));
    OK(ncclRedOpDestroy(op, ranks.communicator(rank)));
  });
  ranks.synchronize();
  EQUAL(values[0][2], 1 * 2 + 2 * 10.0F);
  EQUAL(values[1][0], values[0][0]);
  GIVES(ncclInvalidArgument, ncclRedOpDestroy(ops[0], ranks.communicator(0)));
}

TEST(a_graph_makes_its_collectives_at_each_replay) {
  Ranks ranks(2);
  std::vector<int*> values;
  std::vector<cudaGraphExec_t> graphs(2);
  ranks.each([&](int rank) {
    values.push_back(filled<int>(5, 1));
    const cudaStream_t stream = ranks.stream(rank);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    int* const own = values.back();
    OK(ncclAllReduce(own, own, 5, ncclInt, ncclSum, ranks.communicator(rank), stream));
    launch(stream, [own] { own[0] += 1; });
    OK(ncclAllReduce(own, own, 5, ncclInt, ncclSum, ranks.communicator(rank), stream));
    cudaGraph_t graph = nullptr;
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&graphs[Ranks::at(rank)], graph, 0));
  });
  EQUAL(values[0][0], 1);
  for (int replay = 0; replay < 2; ++replay) {
    ranks.each([&](int rank) { OK(cudaGraphLaunch(graphs[Ranks::at(rank)], ranks.stream(rank))); });
  }
  ranks.synchronize();
  for (const int* const own : values) {
    EQUAL(own[0], ((1 * 2 + 1) * 2 * 2 + 1) * 2);
    EQUAL(own[4], 16);
  }
}

TEST(streams_of_one_communicator_take_turns) {
  Ranks ranks(1);
  auto* const value = filled<int>(1, 0);
  cudaStream_t other = nullptr;
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  Gate gate;
  launch(ranks.stream(0), gate.work());
  launch(ranks.stream(0), [value] { *value = 1; });
  auto* const first = filled<int>(1, 0);
  auto* const second = filled<int>(1, 0);
  OK(ncclBroadcast(value, first, 1, ncclInt, 0, ranks.communicator(0), ranks.stream(0)));
  OK(ncclBroadcast(value, second, 1, ncclInt, 0, ranks.communicator(0), other));
  GIVES(cudaErrorNotReady, cudaStreamQuery(other));
  gate.open();
  OK(cudaStreamSynchronize(other));
  EQUAL(*first, 1);
  EQUAL(*second, 1);
}

}  // namespace simcuda::testing
