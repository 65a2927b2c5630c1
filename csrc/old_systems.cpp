// What the headers of libstdc++ and torch would take from a glibc or libstdc++ newer than those of
// torch's own wheels (manylinux_2_28: glibc 2.28, GCC 8). Defined here, the libraries load there.
#include <sstream>

// GLIBCXX_3.4.26: the default constructors became functions of the library in GCC 9.
template std::basic_stringstream<char>::basic_stringstream();
template std::basic_ostringstream<char>::basic_ostringstream();

// GLIBC_2.32: reference counts ask whether the process has one thread; 0 stands for "perhaps more".
// setup.py gives the variable this name.
extern "C" __attribute__((visibility("hidden"))) char mxfp8_single_threaded;
char mxfp8_single_threaded = 0;
