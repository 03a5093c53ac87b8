#include "textflag.h"

// func callI386(nr uintptr) int
TEXT ·callI386(SB), NOSPLIT, $0-16
	MOVQ nr+0(FP), AX
	XORQ BX, BX
	XORQ CX, CX
	XORQ DX, DX
	BYTE $0xCD; BYTE $0x80 // int $0x80
	MOVLQSX AX, AX
	MOVQ AX, ret+8(FP)
	RET
