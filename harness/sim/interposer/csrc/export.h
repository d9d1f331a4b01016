// Marks the symbols that other libraries and programs see.
#pragma once

#define EXPORT extern "C" __attribute__((visibility("default")))
