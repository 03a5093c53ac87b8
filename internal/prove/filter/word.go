package filter

import "fmt"

// Word is the index of a 32-bit word of struct seccomp_data (seccomp(2)).
type Word int

// The words. Arguments are 64 bits: two words each, the low one first, as on
// every machine that we build for.
const (
	Nr     Word = 0
	Arch   Word = 1
	IPLow  Word = 2
	IPHigh Word = 3
	args   Word = 4
	words       = 16
)

// Arg gives the low (or high) word of an argument, 0 to 5.
func Arg(i int, high bool) Word {
	w := args + Word(2*i)
	if high {
		w++
	}
	return w
}

// String names the word as people do.
func (w Word) String() string {
	switch w {
	case Nr:
		return "nr"
	case Arch:
		return "arch"
	case IPLow, IPHigh:
		return "instruction_pointer"
	}
	half := "low"
	if (w-args)%2 == 1 {
		half = "high"
	}
	return fmt.Sprintf("arg%d.%s", (w-args)/2, half)
}

// Data is one value of struct seccomp_data.
type Data [words]uint32
