// The smallest program: whether it compiles and runs says whether the sanitizer is installed.
int main() { return 0; }
