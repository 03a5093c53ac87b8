package nft_test

import "unsafe"

// unsafePointer passes a buffer to connect(2) with AF_UNSPEC, for which
// x/sys/unix has no sockaddr.
func unsafePointer(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }
