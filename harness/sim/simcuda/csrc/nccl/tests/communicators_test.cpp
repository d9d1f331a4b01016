// Creating, refusing, splitting and ending communicators.

#include <cstring>
#include <string>
#include <thread>

#include "clients.h"

namespace simcuda::testing {

namespace {

bool says(const char* part) { return std::string(ncclGetLastError(nullptr)).find(part) != std::string::npos; }

}  // namespace

TEST(the_version_says_that_it_is_simulated) {
  int version = 0;
  OK(ncclGetVersion(&version));
  EQUAL(version, NCCL_VERSION_CODE);
  EQUAL(std::string(ncclGetErrorString(ncclInProgress)), "NCCL operation in progress");
}

TEST(two_ranks_on_one_device_are_refused) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  ncclComm_t first = nullptr, second = nullptr;
  OK(ncclGroupStart());
  OK(ncclCommInitRank(&first, 2, id, 0));
  OK(ncclCommInitRank(&second, 2, id, 1));
  GIVES(ncclInvalidUsage, ncclGroupEnd());
  CHECK(says("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device"));
  const int twice[] = {1, 1};
  ncclComm_t both[2];
  GIVES(ncclInvalidUsage, ncclCommInitAll(both, 2, twice));
}

TEST(wrong_ranks_and_ids_are_refused) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  ncclComm_t made = nullptr;
  GIVES(ncclInvalidArgument, ncclCommInitRank(&made, 2, id, 2));
  GIVES(ncclInvalidArgument, ncclCommInitRank(&made, 0, id, 0));
  std::memset(&id, 7, sizeof id);
  GIVES(ncclInvalidArgument, ncclCommInitRank(&made, 1, id, 0));
  ncclConfig_t config{};
  GIVES(ncclInvalidArgument, ncclCommInitRankConfig(&made, 1, id, 0, &config));
}

TEST(wrong_arguments_are_refused) {
  Ranks ranks(2);
  OK(cudaSetDevice(0));
  auto* const value = filled<int>(1, 0);
  const ncclComm_t own = ranks.communicator(0);
  const cudaStream_t stream = ranks.stream(0);
  GIVES(ncclInvalidArgument, ncclBroadcast(value, value, 1, ncclInt, 2, own, stream));
  GIVES(ncclInvalidArgument, ncclBroadcast(value, value, 1, ncclNumTypes, 0, own, stream));
  GIVES(ncclInvalidArgument, ncclAllReduce(value, value, 1, ncclInt, static_cast<ncclRedOp_t>(99), own, stream));
  GIVES(ncclInvalidArgument, ncclAllReduce(nullptr, value, 1, ncclInt, ncclSum, own, stream));
  GIVES(ncclInvalidArgument, ncclAllReduce(value, value, 1, ncclInt, ncclSum, nullptr, stream));
  GIVES(ncclInvalidUsage, ncclGroupEnd());
  OK(ncclGroupStart());
  GIVES(ncclInvalidArgument, ncclSend(value, 1, ncclInt, -1, own, stream));
  GIVES(ncclInvalidArgument, ncclGroupEnd());
  OK(cudaStreamSynchronize(stream));
}

TEST(sizes_that_differ_are_an_error_of_every_rank) {
  Ranks ranks(2);
  ranks.grouped([&](int rank) {
    auto* const value = filled<int>(8, 0);
    OK(ncclAllReduce(value, value, Ranks::at(rank) + 3, ncclInt, ncclSum, ranks.communicator(rank),
                     ranks.stream(rank)));
  });
  ranks.each([&](int rank) {
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(ranks.communicator(rank), &state));
    EQUAL(state, ncclInvalidUsage);
    CHECK(says("calls AllReduce of 3 int32") && says("calls AllReduce of 4 int32"));
    GIVES(cudaErrorNotReady, cudaStreamQuery(ranks.stream(rank)));
    OK(ncclCommAbort(ranks.communicator(rank)));
    OK(cudaStreamSynchronize(ranks.stream(rank)));
  });
}

TEST(an_aborted_communicator_lets_its_streams_go_and_is_none_any_longer) {
  Ranks ranks(2);
  OK(cudaSetDevice(0));
  auto* const value = filled<int>(1, 5);
  OK(ncclAllReduce(value, value, 1, ncclInt, ncclSum, ranks.communicator(0), ranks.stream(0)));
  bool ran = false;
  launch(ranks.stream(0), [&ran] { ran = true; });
  GIVES(cudaErrorNotReady, cudaStreamQuery(ranks.stream(0)));
  OK(ncclCommAbort(ranks.communicator(0)));
  OK(cudaStreamSynchronize(ranks.stream(0)));
  CHECK(ran);
  EQUAL(*value, 5);
  GIVES(ncclInvalidArgument, ncclCommAbort(ranks.communicator(0)));
  GIVES(ncclInvalidArgument, ncclAllReduce(value, value, 1, ncclInt, ncclSum, ranks.communicator(0), ranks.stream(0)));
}

TEST(a_communicator_is_split_by_colors_and_keys) {
  Ranks ranks(4);
  std::vector<ncclComm_t> made(4, nullptr);
  ranks.grouped([&](int rank) {
    OK(ncclCommSplit(ranks.communicator(rank), rank == 3 ? NCCL_SPLIT_NOCOLOR : rank / 2, -rank, &made[Ranks::at(rank)],
                     nullptr));
  });
  CHECK(made[3] == nullptr);
  for (const auto& [rank, expected] : {std::pair{0, 1}, {1, 0}, {2, 0}}) {
    int number = -1, count = 0;
    OK(ncclCommUserRank(made[Ranks::at(rank)], &number));
    OK(ncclCommCount(made[Ranks::at(rank)], &count));
    EQUAL(number, expected);
    EQUAL(count, rank == 2 ? 1 : 2);
  }
}

TEST(a_communicator_is_shrunk_while_a_rank_is_gone) {
  Ranks ranks(3);
  ranks.each([&](int rank) {
    if (rank == 1) return;
    auto* const value = filled<int>(1, 1);
    OK(ncclAllReduce(value, value, 1, ncclInt, ncclSum, ranks.communicator(rank), ranks.stream(rank)));
  });
  std::vector<ncclComm_t> made(3, nullptr);
  int gone = 1;
  ranks.grouped([&](int rank) {
    if (rank == 1) return;
    OK(ncclCommShrink(ranks.communicator(rank), &gone, 1, &made[Ranks::at(rank)], nullptr, NCCL_SHRINK_ABORT));
  });
  std::vector<int*> values;
  ranks.grouped([&](int rank) {
    values.push_back(filled<int>(1, rank));
    if (rank == 1) return;
    OK(ncclAllReduce(values.back(), values.back(), 1, ncclInt, ncclSum, made[Ranks::at(rank)], ranks.stream(rank)));
  });
  ranks.synchronize();
  EQUAL(*values[0], 2);
  EQUAL(*values[2], 2);
}

TEST(a_communicator_that_does_not_block_is_made_meanwhile) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t first = nullptr, second = nullptr;
  GIVES(ncclInProgress, ncclCommInitRankConfig(&first, 2, id, 0, &config));
  ncclResult_t state = ncclSuccess;
  OK(ncclCommGetAsyncError(first, &state));
  EQUAL(state, ncclInProgress);
  auto* const value = filled<int>(1, 0);
  GIVES(ncclInvalidArgument, ncclAllReduce(value, value, 1, ncclInt, ncclSum, first, nullptr));
  OK(cudaSetDevice(1));
  GIVES(ncclInProgress, ncclCommInitRankConfig(&second, 2, id, 1, &config));
  for (ncclComm_t each : {first, second}) {
    do {
      OK(ncclCommGetAsyncError(each, &state));
    } while (state == ncclInProgress);
    EQUAL(state, ncclSuccess);
  }
  OK(ncclCommFinalize(first));
  OK(ncclCommDestroy(first));
}

TEST(one_that_waits_for_a_rank_can_be_aborted) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  GIVES(ncclInProgress, ncclCommInitRankConfig(&made, 2, id, 0, &config));
  OK(ncclCommAbort(made));
}

TEST(a_finalized_communicator_takes_no_more) {
  Ranks ranks(1);
  auto* const value = filled<int>(1, 0);
  const ncclComm_t own = ranks.communicator(0);
  OK(ncclAllReduce(value, value, 1, ncclInt, ncclSum, own, ranks.stream(0)));
  OK(ncclCommFinalize(own));
  OK(cudaStreamSynchronize(ranks.stream(0)));
  GIVES(ncclInvalidUsage, ncclAllReduce(value, value, 1, ncclInt, ncclSum, own, ranks.stream(0)));
  GIVES(ncclInvalidArgument, ncclCommFinalize(own));
  OK(ncclCommDestroy(own));
  GIVES(ncclInvalidArgument, ncclCommDestroy(own));
}

TEST(memory_that_no_device_has_is_an_illegal_access) {
  Ranks ranks(1);
  int here = 0;
  Gate gate;  // keeps the error from calls after the launch
  launch(ranks.stream(0), gate.work());
  OK(ncclAllReduce(&here, &here, 1, ncclInt, ncclSum, ranks.communicator(0), ranks.stream(0)));
  gate.open();
  GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(ranks.stream(0)));
}

TEST(buffers_are_registered_and_kernels_are_refused) {
  Ranks ranks(1);
  auto* const value = filled<int>(1, 0);
  void* handle = nullptr;
  OK(ncclCommRegister(ranks.communicator(0), value, 4, &handle));
  OK(ncclCommDeregister(ranks.communicator(0), handle));
  GIVES(ncclInvalidArgument, ncclCommDeregister(ranks.communicator(0), handle));
  ncclWindow_t window = nullptr;
  OK(ncclCommWindowRegister(ranks.communicator(0), value, 4, &window, NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclCommWindowDeregister(ranks.communicator(0), window));
  void* memory = nullptr;
  OK(ncclMemAlloc(&memory, 1000));
  OK(ncclMemFree(memory));
}

}  // namespace simcuda::testing
